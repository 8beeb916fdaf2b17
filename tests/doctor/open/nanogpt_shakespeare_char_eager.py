# SPDX-License-Identifier: Apache-2.0
"""A small GPT over characters (10 M parameters, 64 x 256 tokens a step, bf16 autocast), trained without compiling.

An engineer sees several hundred short kernels a step, dropout, layer norm, casts and additions each by itself, and a
Python thread that launches them about as fast as the GPU finishes them. The repair is the script's own remedy:
torch.compile, which fuses them and launches far fewer.
"""
CAUSE = "launch"
LINE = "train.py:300"
REPOSITORY = "karpathy/nanoGPT"
COMMIT = "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"
COMMAND = ["train.py", "config/train_shakespeare_char.py", "--compile=False", "--eval_iters=2", "--eval_interval=100000"]
EDITS = []
REPAIR = [("train.py", 205, 205, "if True:")]
REMEDIES = {"graphs": [("train.py", 205, 209, 'model = torch.compile(model, mode="reduce-overhead")')]}
STEPS = 400
BEFORE = 5
