# SPDX-License-Identifier: Apache-2.0
"""Dion's training script with its Muon: GPT of 160 M parameters, 4 x 32 texts of 1024 words a step, bfloat16, compiled.

An engineer sees what can be done without much ado done: products in bfloat16 under autocast, fused attention, passes
over activations and logits fused by the compiler, an optimizer that works on weights of one shape together with kernels
of its own, and tokens that are read in a millisecond. The GPU computes all the time, most of it in matrix products.
Nothing simple gains a tenth. Both variants are the same: a step has 128 texts instead of 1024, tokens are made up, one
GPU is told that it is alone, and nothing is tested in between.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "microsoft/dion"
COMMIT = "0a059a4542e5aa74b40dcd1dce363836c7afcd48"
COMMAND = ["train.py", "--config", "configs/muon_160m.yaml", "--no_wandb", "--batch_size", "128"]
EDITS = [
    ("train.py", 9, 9, """\
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
"""),
    ("configs/muon_160m.yaml", 18, 18, "val_loss_every: 0"),
]
REPAIR = []
STEPS = 60
WARM_UP = 10
BEFORE = 5
