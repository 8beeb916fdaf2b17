# SPDX-License-Identifier: Apache-2.0
"""llm-baselines trains a Llama of 124 M weights, compiled, in bfloat16, with fused AdamW: 50 texts of 512 words a step.

An engineer sees what can be done without much ado done: products in bfloat16, fused attention, norms, rotations and
losses joined by the compiler, one kernel for the optimizer, pinned and asynchronous copies of a few hundred kilobytes,
and a loss that is read every fifty steps. The GPU computes all the time, most of it in matrix products. Nothing simple
gains a tenth. Both variants are the same: there are 12 layers, as in the runs that its authors compare optimizers with,
tokens are made up, nothing is tested in between, and packages that log or split words are not needed.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "epfml/llm-baselines"
COMMIT = "c8a5105d8125a49e5263daec9f7313471e72612e"
COMMAND = ["src/main.py", "--compile", "--n_layer", "12"]
EDITS = [
    ("src/main.py", 12, 12, ""),
    ("src/data/utils.py", 8, 17, ""),
    ("src/data/utils.py", 25, 56,
     '    return {split: f"{args.datasets_dir}/{split}.bin" for split in ("train", "val")}'),
    ("src/models/base.py", 12, 12, ""),
    ("src/models/base.py", 164, 164, ""),
    ("src/models/llama.py", 8, 8, ""),
    ("src/models/llama.py", 165, 165, ""),
    ("src/models/utils.py", 5, 6, ""),
    ("src/optim/base.py", 8, 11, ""),
    ("src/optim/base.py", 128, 132, "        if False:"),
    ("src/optim/utils.py", 9, 9, ""),
    ("src/optim/weight_averaging.py", 6, 6, ""),
]
REPAIR = []
STEPS = 120
WARM_UP = 10
BEFORE = 3
