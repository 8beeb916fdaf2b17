# SPDX-License-Identifier: Apache-2.0
"""A PaLM-like Transformer over bytes (width 512, depth 8, 4 x 1024 bytes, four micro-batches a step), all in float32.

An engineer sees matrix products in full float32 without TF32, and attention scores written to memory in float32, on a
GPU that does bf16 an order of magnitude faster. The repair runs the forward pass under bf16 autocast. In both variants
the package's plain model takes the place of its Triton one, which needs an older Triton, and the text is made up.
"""
CAUSE = "precision"
LINE = "train.py:87"
REPOSITORY = "lucidrains/PaLM-pytorch"
COMMIT = "7164d13d5a831647edb5838544017f387130f987"
COMMAND = ["train.py"]
EDITS = [
    ("train.py", 11, 11, "from palm_pytorch import PaLM"),
    ("train.py", 22, 22, "GENERATE_LENGTH = 4"),
    ("train.py", 52, 53, "    X = np.frombuffer(file.read(), dtype=np.uint8).copy()\n    trX, vaX = np.split(X, [int(9e5)])"),
]
REPAIR = [("train.py", 87, 87, '        with torch.autocast("cuda", torch.bfloat16):\n'
                               "            loss = model(next(train_loader))")]
STEPS = 50
WARM_UP = 10
