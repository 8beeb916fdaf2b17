# SPDX-License-Identifier: Apache-2.0
"""A benchmark that looks for the most matrix products a second that an accelerator can do, in bfloat16.

An engineer sees one product of 16 384 x 32 768 by 32 768 x 16 384 after another, some twenty-five milliseconds each, for
which the program waits only after a thousand. What it does between them, to empty the cache and to fill the result
anew, is one part in seventy. Nothing is left to gain; both variants are the same. A step is one product, as it is in
the half minute in which the benchmark warms up, and a thousand products are one of its measurements instead of a hundred.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "stas00/ml-engineering"
COMMIT = "744d01e18b79512572f64a6bbd8b5f4a725203a7"
FOLDER = "compute/accelerator/benchmarks"
COMMAND = ["mamf-finder.py", "--m", "16384", "--n", "16384", "--k", "32768", "--num_iterations", "1000"]
EDITS = [("compute/accelerator/benchmarks/mamf-finder.py", 321, 320, "                        step_done()")]
REPAIR = []
STEPS = 180
WARM_UP = 40
