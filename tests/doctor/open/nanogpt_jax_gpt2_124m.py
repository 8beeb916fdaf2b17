# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of 124 M parameters in Flax with Optax's AdamW, 12 sequences of 1024 tokens a step, compiled by XLA.

An engineer sees a setting `dtype = 'bfloat16'` that nothing reads: weights, activations, 600 megabytes of attention in
each of twelve layers and two and a half gigabytes of logits are all float32, the products TF32 at best. The repair
casts the weights inside the loss, which makes all of it bfloat16 but the loss itself, half the bytes and twice the rate
of the products. The other repair asks for the loss every hundredth step instead of every one. In both variants the
tokens are made up, nothing is sampled, evaluated or saved between steps, and two lines suit newer versions.
"""
CAUSE = "precision"
LINE = "train.py:251"
REPOSITORY = "cgarciae/nanoGPT-jax"
COMMIT = "24fd60f987a946915e43c0000195bd73ddc34271"
COMMAND = ["train.py"]
EDITS = [
    ("train.py", 25, 29, ""),
    ("train.py", 83, 94, ""),
    ("train.py", 202, 202, ""),
    ("train.py", 219, 249, ""),
    ("train.py", 252, 251, "    step_done(loss)"),
    ("model.py", 56, 56, "        q, k, v = jnp.split(self.c_attn(x), 3, axis=-1)"),
    ("model.py", 261, 261, "        param_partitions = path_aware_map(partition_fn, params)"),
]
REPAIR = [
    ("train.py", 170, 170, "        {'params': jax.tree.map(lambda p: p.astype(jnp.bfloat16), state.params)},"),
    ("model.py", 138, 138, "                logits.astype(jnp.float32), targets).mean()"),
]
OTHER_REPAIRS = {"sync": [("train.py", 39, 39, "log_interval = 100")]}
STEPS = 100
WARM_UP = 10
BEFORE = 3
