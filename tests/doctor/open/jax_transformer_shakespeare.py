# SPDX-License-Identifier: Apache-2.0
"""A small Transformer (three layers, width 128) in plain JAX learns characters, 128 x 32 a step, with an Adam of its own.

An engineer sees the optimizer call two compiled functions for each of some fifty parameters, a hundred calls a step
that launch a kernel of two microseconds each and copy the step's number each; forward and backward pass are one call.
The repair compiles the whole update. The other repair reads the loss, which logging reads at every step, one step late.
In both variants the text is made up, logging's package is left out, and nothing is sampled between epochs.
"""
CAUSE = "launch"
LINE = "transformer.py:858"
REPOSITORY = "vpj/jax_transformer"
COMMIT = "521d67e9160a6362a18e68e6b3aeafc270d40ad0"
COMMAND = ["transformer.py"]
EDITS = [
    ("transformer.py", 55, 58, ""),
    ("transformer.py", 832, 832, "        self.states = jax.tree.map(self._init_state, params)"),
    ("transformer.py", 856, 856, "        self.states = jax.tree.map(self._update_state_jit, grads, self.states)"),
    ("transformer.py", 858, 858,
     "        return jax.tree.map(partial(self._step_jit, self._n_steps), params, self.states)"),
    ("transformer.py", 919, 923, "        path = 'tiny_shakespeare.txt'"),
    ("transformer.py", 996, 996, ""),
    ("transformer.py", 1034, 1034, "    if True:"),
    ("transformer.py", 1036, 1036, "        for epoch in range(100000):"),
    ("transformer.py", 1038, 1038, "            for data in dataset:"),
    ("transformer.py", 1041, 1041, "                float(loss)"),
    ("transformer.py", 1046, 1045, "                step_done(params)"),
    ("transformer.py", 1047, 1054, ""),
]
REPAIR = [
    ("transformer.py", 839, 838, "        self._all_jit = jax.jit(self._all)"),
    ("transformer.py", 855, 854, """\
        params, self.states = self._all_jit(self._n_steps, params, grads, self.states)
        return params

    def _all(self, n_steps, params, grads, states):
        states = jax.tree.map(self._update_state, grads, states)
        return jax.tree.map(partial(self._step, n_steps), params, states), states

    def unused(self, params, grads):
"""),
]
OTHER_REPAIRS = {"sync": [("transformer.py", 1040, 1040, """\
                late = globals().setdefault('late', [0.0])
                late.append(get_loss(params, data))
                loss = late.pop(0)
""")]}
STEPS = 1500
WARM_UP = 50
BEFORE = 10
