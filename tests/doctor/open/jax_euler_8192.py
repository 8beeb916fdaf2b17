# SPDX-License-Identifier: Apache-2.0
"""Two streams of a gas mix: a finite-volume solver in JAX on 8192 x 8192 cells, single precision.

An engineer sees its parts compiled one by one and the step that calls them not: every operation between them, and every
result handed from one part to the next, writes and reads fields of a quarter of a gigabyte, some two hundred times a
step. The repair compiles the step as a whole, one decorator. In both variants no picture is stored.
"""
CAUSE = "memory"
LINE = "euler.py:140"
REPOSITORY = "pmocz/jax-euler-benchmarks"
COMMIT = "f47dedf0ae61e9bbb0591159f9edfe5271c3d393"
COMMAND = ["euler.py", "--resolution", "8192"]
EDITS = [
    ("euler.py", 223, 222, "        step_done(Mass, Momx, Momy, Energy)"),
    ("euler.py", 226, 226, "            save_plot = False"),
]
REPAIR = [("euler.py", 122, 122,
           "@jax.jit\ndef update(Mass, Momx, Momy, Energy, vol, dx, gamma, courant_fac):")]
STEPS = 350
WARM_UP = 10
BEFORE = 5
