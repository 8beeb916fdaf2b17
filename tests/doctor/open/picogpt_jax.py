# SPDX-License-Identifier: Apache-2.0
"""GPT-2 (124 M parameters) in sixty lines of NumPy, JAX's in its place as its author proposes; a step is a token.

An engineer sees every token make the text longer by one, so that each operation meets arrays of a size that it has not
met yet and is compiled anew: a dozen of element-wise operations, sums and products, tens of milliseconds each. The
repair pads the text to the length it will have, which a causal model allows, and compiles the whole pass once. The
other repair moves the weights to the GPU once; as published each operation takes its own there, half a gigabyte a
token. In both variants weights and prompt are made up and nothing is decoded.
"""
CAUSE = "recompile"
LINE = "gpt2.py:90"
REPOSITORY = "jaymody/picoGPT"
COMMIT = "817292baea75f194fb0bb8ba2aa5f947af4e45ee"
COMMAND = ["gpt2.py"]
EDITS = [
    ("gpt2.py", 1, 1, "import jax.numpy as np"),
    ("gpt2.py", 93, 92, "        step_done()"),
    ("gpt2.py", 98, 104, """\
    import numpy

    random = numpy.random.default_rng(0)

    def weights(*shape):
        return random.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.02)

    def dense(inner, outer):
        return {"w": weights(inner, outer), "b": weights(outer)}

    def norm():
        return {"g": weights(768), "b": weights(768)}

    hparams = {"n_ctx": 1024, "n_head": 12}
    blocks = [{"ln_1": norm(), "attn": {"c_attn": dense(768, 2304), "c_proj": dense(768, 768)}, "ln_2": norm(),
               "mlp": {"c_fc": dense(768, 3072), "c_proj": dense(3072, 768)}} for _ in range(12)]
    params = {"wte": weights(50257, 768), "wpe": weights(1024, 768), "blocks": blocks, "ln_f": norm()}
    input_ids = list(range(10))
"""),
    ("gpt2.py", 112, 115, ""),
    ("gpt2.py", 119, 121, '    main("", 400)'),
]
REPAIR = [
    ("gpt2.py", 75, 75, "    x = wte[inputs] + wpe[: len(inputs)]"),
    ("gpt2.py", 88, 88, """\
    import jax

    next_token = jax.jit(lambda inputs, last, params: np.argmax(gpt2(inputs, **params, n_head=n_head)[last]))
    length = len(inputs) + n_tokens_to_generate
"""),
    ("gpt2.py", 90, 91, """\
        padded = np.array(inputs + [0] * (length - len(inputs)))
        next_id = next_token(padded, len(inputs) - 1, params)
"""),
]
OTHER_REPAIRS = {"copy": [("gpt2.py", 88, 88, """\
    import jax

    params = jax.device_put(params)
"""), ("gpt2.py", 75, 75, "    x = wte[np.array(inputs)] + wpe[: len(inputs)]")]}
STEPS = 10
WARM_UP = 2
