# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of 124 M parameters at the script's defaults: compiled, bf16, 12 x 1024 tokens, five micro-batches a step.

An engineer sees large matrix products, fused attention and fused element-wise kernels back to back, a fused optimizer,
one reading of the loss a step of several hundred milliseconds. Nothing cheap is left; both variants are the same. The
tokens are random, and five micro-batches are what one of the eight GPUs of the published run gets.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "karpathy/nanoGPT"
COMMIT = "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"
COMMAND = ["train.py", "--gradient_accumulation_steps=5", "--eval_iters=1", "--eval_interval=100000"]
EDITS = []
REPAIR = []
STEPS = 25
WARM_UP = 5
BEFORE = 3
