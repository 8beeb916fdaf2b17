# SPDX-License-Identifier: Apache-2.0
"""A widened nanoGPT, 2048 wide and two layers deep, learns under the maximal update parametrization: 32 x 1024 tokens.

An engineer sees products of 32 768 rows with weights of 2048 x 8192, and with an output layer of 50 304 words, in bf16
by compiled code with flash attention, and a fused AdamW; the next batch is copied from pinned memory while the network
runs, and the loss, read at every step, leaves a gap of a millisecond in eighty. Nothing gains a twentieth. Both
variants are the same: the tokens are made up, and nothing is tested in between, which the sweep's script does at every
step.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "EleutherAI/nanoGPT-mup"
COMMIT = "b2a5e60948d2e11885dc76c1355af98705f54a70"
COMMAND = ["train.py", "--out_dir=trained", "--always_save_checkpoint=False", "--never_save_checkpoint=True",
           "--gradient_accumulation_steps=1", "--batch_size=32", "--block_size=1024", "--n_layer=2", "--n_head=32",
           "--n_embd=2048", "--learning_rate=0.00390625", "--lr_decay_iters=1000", "--min_lr=0.000390625",
           "--max_iters=1000", "--mup_enabled=True", "--mup_width_multiplier=8.0"]
EDITS = [("train.py", 297, 297, "    if False:")]
REPAIR = []
STEPS = 100
WARM_UP = 20
BEFORE = 4
