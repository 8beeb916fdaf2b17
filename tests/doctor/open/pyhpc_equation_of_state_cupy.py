# SPDX-License-Identifier: Apache-2.0
"""A term of the equation of state of sea water in CuPy, at four million points in double precision.

An engineer sees some 370 element-wise operations that each read one or two whole arrays from the GPU's memory
and write another, eight milliseconds of traffic for a formula of three inputs and one output. The repair is CuPy's own
remedy, cupy.fuse, which makes one kernel of the function. In both variants the inputs are made once and not before
every repetition, which the program does not time either.
"""
CAUSE = "memory"
LINE = "benchmarks/equation_of_state/eos_cupy.py:63"
REPOSITORY = "dionhaefner/pyhpc-benchmarks"
COMMIT = "d438ef8b76ecb51a019b105a6e06150e5a35c177"
COMMAND = ["run.py", "benchmarks/equation_of_state", "-b", "cupy", "-s", "4194304", "-r", "100000", "--device", "gpu"]
EDITS = [
    ("run.py", 166, 165, "    made = {}"),
    ("run.py", 170, 170, "                    if (b, size) not in made:\n"
                         "                        made[b, size] = bm_module.get_callable(b, size, device=device)\n"
                         "                    run = made[b, size]"),
    ("run.py", 190, 189, "                step_done(res)"),
]
REPAIR = [("benchmarks/equation_of_state/eos_cupy.py", 63, 62, "@cp.fuse()")]
STEPS = 700
