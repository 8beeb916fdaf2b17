# SPDX-License-Identifier: Apache-2.0
"""A variational autoencoder of two small dense networks in Flax NNX on binary images, 64 a step, Adam.

An engineer sees kernels worth a tenth of a millisecond a step and a Python thread that takes far longer to call the
jitted function: nnx.jit takes the model and the optimizer apart and puts them together again at every call. The repair
is Flax's own remedy, nnx.cached_partial, which does so once. In both variants the images, as many and as large as
MNIST's, are random and not fetched.
"""
CAUSE = "host"
LINE = "examples/nnx_toy_examples/05_vae.py:165"
REPOSITORY = "google/flax"
COMMIT = "18f8f311c275d57f46d95e41b15aa97b454754c0"
FOLDER = "examples/nnx_toy_examples"
COMMAND = ["05_vae.py"]
EDITS = [
    ("examples/nnx_toy_examples/05_vae.py", 23, 23, ""),
    ("examples/nnx_toy_examples/05_vae.py", 35, 37, "X_train = np.random.randint(2, size=(60000, 28, 28), dtype=np.uint8)\n"
                                                    "X_test = np.random.randint(2, size=(10000, 28, 28), dtype=np.uint8)"),
    ("examples/nnx_toy_examples/05_vae.py", 167, 166, "    step_done(loss)"),
]
REPAIR = [
    ("examples/nnx_toy_examples/05_vae.py", 159, 158, "cached_train_step = nnx.cached_partial(train_step, model, optimizer)"),
    ("examples/nnx_toy_examples/05_vae.py", 165, 165, "    loss = cached_train_step(x_batch)"),
]
STEPS = 1000
BEFORE = 5
