# SPDX-License-Identifier: Apache-2.0
"""The inference benchmark of a collection of image models: a ViT-B/16 in bfloat16, 256 images a step.

An engineer sees large matrix products in bfloat16 and fused attention take most of a step of some twenty milliseconds,
with GELU, layer norm and additions over large activations between them; the wait after each step is nothing beside it.
Nothing cheap is left, fusing what is between the products being worth a tenth; both variants are the same. The images
are random, as published.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "huggingface/pytorch-image-models"
COMMIT = "aa4b5850c1543fa488abf260f18390eda46cf85d"
COMMAND = ["benchmark.py", "--model", "vit_base_patch16_224", "--bench", "inference", "--precision", "bfloat16", "-b", "256",
           "--num-bench-iter", "100000"]
EDITS = [("benchmark.py", 311, 310, "            step_done()")]
REPAIR = []
STEPS = 180
