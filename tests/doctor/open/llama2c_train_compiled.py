# SPDX-License-Identifier: Apache-2.0
"""llama2.c trains its model of 15 million weights on short stories: four times 128 x 256 tokens a step, AdamW.

An engineer sees a small network, six layers of width 288 and an output layer of 32 000 words, run in bf16 by compiled
code with flash attention over 32 768 tokens at once, four times before a fused AdamW; batches are put together, pinned
and copied while the network runs, and the loss is read once for the four. Nothing gains a twentieth. Both variants are
the same: the tokens are made up, packages for their making are not needed, and nothing is tested in between.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "karpathy/llama2.c"
COMMIT = "350e04fe35433e6d2941dce5a1f53308f87058eb"
COMMAND = ["train.py"]
EDITS = [
    ("train.py", 32, 32, ""),
    ("train.py", 261, 261, "    if False:"),
    ("tinystories.py", 15, 16, ""),
    ("tinystories.py", 21, 21, ""),
]
REPAIR = []
REMEDIES = {
    "micro_batches": [("train.py", 48, 48, "batch_size = 512"), ("train.py", 60, 60, "gradient_accumulation_steps = 1")],
    "loader": [("train.py", 139, 139, "    num_workers=2,")],
}
STEPS = 100
WARM_UP = 20
BEFORE = 4
