# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of 124 M parameters trained as in a well-known lecture: bfloat16, flash attention, fused AdamW, not compiled.

An engineer sees good products of matrices, and between them a third of the GPU's time in operations that only read and
write memory: layer norms and residuals in float32 with a cast before each product, GELU, and a cross-entropy that
widens 16 384 rows of 50 304 logits to float32 and goes over them several times. The repair is the switch that the
script has for it, use_compile, off because it disturbed an evaluation. A step is one micro-batch of half a million
tokens' worth. In both variants micro-batches are 16 sequences instead of 64, which leaves memory for others, the tokens
are made up, and nothing is evaluated or generated between steps.
"""
CAUSE = "memory"
LINE = "train_gpt2.py:493"
REPOSITORY = "karpathy/build-nanogpt"
COMMIT = "6104ab1b53920f6e2159749676073ff7d815c1fa"
COMMAND = ["train_gpt2.py"]
EDITS = [
    ("train_gpt2.py", 9, 9, ""),
    ("train_gpt2.py", 205, 205, ""),
    ("train_gpt2.py", 322, 322, ""),
    ("train_gpt2.py", 325, 325, "B = 16 # micro batch size"),
    ("train_gpt2.py", 380, 481, ""),
    ("train_gpt2.py", 501, 500, "        step_done()"),
]
REPAIR = [("train_gpt2.py", 342, 342, "use_compile = True")]
STEPS = 180
