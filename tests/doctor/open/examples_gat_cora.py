# SPDX-License-Identifier: Apache-2.0
"""Graph attention with eight heads on 2708 papers that cite one another, attention as a dense matrix over all pairs.

An engineer sees a dozen element-wise operations each read and write 8 x 2708 x 2708 numbers, a quarter of a gigabyte,
though one pair in seven hundred is an edge: scores, leaky ReLU, a mask, softmax, dropout and all of it backwards, and
twice more to evaluate each step. The repair compiles the network, which makes few kernels of them. The papers are made
up, as many and as wide as those of Cora. The other repair lets the products, a smaller part, use TF32.
"""
CAUSE = "memory"
LINE = "gat/main.py:120"
REPOSITORY = "pytorch/examples"
COMMIT = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
FOLDER = "gat"
COMMAND = ["main.py", "--epochs", "100000"]
EDITS = [("gat/main.py", 3, 3, "")]
REPAIR = [("gat/main.py", 360, 360, "    gat_net.compile()")]
OTHER_REPAIRS = {"precision": [("gat/main.py", 317, 317, '    torch.set_float32_matmul_precision("high")')]}
STEPS = 800
BEFORE = 5
