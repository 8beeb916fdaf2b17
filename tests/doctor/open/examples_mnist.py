# SPDX-License-Identifier: Apache-2.0
"""The well-known first example: a small convolutional network on images of digits, 64 a step, Adadelta.

An engineer sees the GPU idle most of the time: one worker opens, scales and normalizes the images one by one in Python,
and the training loop waits for it. The repair is the first thing everyone tries, eight workers instead of one. The
images are made by a script; their number and size are those of MNIST.
"""
CAUSE = "input"
LINE = "mnist/main.py:38"
REPOSITORY = "pytorch/examples"
COMMIT = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
FOLDER = "mnist"
COMMAND = ["main.py"]
EDITS = []
REPAIR = [("mnist/main.py", 109, 109, "        accel_kwargs = {'num_workers': 8,")]
STEPS = 800
