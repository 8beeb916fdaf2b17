# SPDX-License-Identifier: Apache-2.0
"""Digits learned without backpropagation: each layer by itself tells right labels from wrong, 50 000 pictures a step.

An engineer sees four products of 50 000 x 784 x 500 a step in float32, which this library keeps off the tensor cores by
default: three milliseconds of a step that has little else to do but read the pictures. The repair allows TF32. The
other repair normalizes the pictures once and not in every pass. Steps are those of the first layer, which goes on for
longer; the pictures are made by a script, and their number and size are those of MNIST.
"""
CAUSE = "precision"
LINE = "mnist_forward_forward/main.py:69"
REPOSITORY = "pytorch/examples"
COMMIT = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
FOLDER = "mnist_forward_forward"
COMMAND = ["main.py", "--epochs", "100000"]
EDITS = []
REPAIR = [("mnist_forward_forward/main.py", 135, 134, '    torch.set_float32_matmul_precision("high")')]
OTHER_REPAIRS = {"memory": [
    ("mnist_forward_forward/main.py", 68, 67, """\
        return self.activations(self.direction(x))

    def direction(self, x):
        return x / (x.norm(2, 1, keepdim=True) + 1e-4)

    def activations(self, x_direction):
"""),
    ("mnist_forward_forward/main.py", 68, 68, ""),
    ("mnist_forward_forward/main.py", 72, 71, "        pos, neg = self.direction(x_pos), self.direction(x_neg)"),
    ("mnist_forward_forward/main.py", 73, 74, "            g_pos = self.activations(pos).pow(2).mean(1)\n"
                                              "            g_neg = self.activations(neg).pow(2).mean(1)"),
]}
STEPS = 900
WARM_UP = 20
BEFORE = 5
