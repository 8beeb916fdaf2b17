# SPDX-License-Identifier: Apache-2.0
"""Mixing along surfaces of equal density, from an ocean model, in JAX: stencils in double precision at 16 M points.

An engineer sees one compiled program of fused kernels that read and write large arrays of three to five dimensions back
to back, some ten milliseconds of memory traffic for one launch; the wait at the end of each repetition is short beside
it. Nothing cheap is left; both variants are the same. The inputs are made once and not before every repetition, which
the program does not time either.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "dionhaefner/pyhpc-benchmarks"
COMMIT = "d438ef8b76ecb51a019b105a6e06150e5a35c177"
COMMAND = ["run.py", "benchmarks/isoneutral_mixing", "-b", "jax", "-s", "16777216", "-r", "100000", "--device", "gpu"]
EDITS = [
    ("run.py", 166, 165, "    made = {}"),
    ("run.py", 170, 170, "                    if (b, size) not in made:\n"
                         "                        made[b, size] = bm_module.get_callable(b, size, device=device)\n"
                         "                    run = made[b, size]"),
    ("run.py", 190, 189, "                step_done(res)"),
]
REPAIR = []
STEPS = 300
