# SPDX-License-Identifier: Apache-2.0
"""A Kolmogorov-Arnold network (784, 64, 10, cubic splines) on images of digits, 64 a step.

An engineer sees the training loop make every batch itself: 64 images are opened, scaled and normalized one by one in
Python, about four milliseconds, and only then are some hundred small spline operations launched, about three. The
repair gives the loader eight workers. The images are made by a script; their number and size are those of MNIST.
"""
CAUSE = "input"
LINE = "examples/mnist.py:22"
REPOSITORY = "Blealtan/efficient-kan"
COMMIT = "7b6ce1c87f18c8bc90c208f6b494042344216b11"
COMMAND = ["examples/mnist.py"]
EDITS = [("examples/mnist.py", 1, 1, "import sys\n\nsys.path.insert(0, \"src\")\nfrom efficient_kan import KAN")]
REPAIR = [("examples/mnist.py", 22, 22,
           "trainloader = DataLoader(trainset, batch_size=64, shuffle=True, num_workers=8)")]
STEPS = 450
