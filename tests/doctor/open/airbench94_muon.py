# SPDX-License-Identifier: Apache-2.0
"""A record for fast training on CIFAR-10: half precision, channels last, the whole set on the GPU, compiled with CUDA
graphs and tuned kernels, 2000 images a step.

An engineer sees convolutions and pooling of a large batch fill the GPU, with short pauses for tests between epochs. It
has been tuned by hand for years and nothing cheap is left; both variants are the same. The images are made up.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "KellerJordan/cifar10-airbench"
COMMIT = "f1c599c4af24aca803e3e65a6a7e52a502e09d0e"
COMMAND = ["airbench94_muon.py"]
EDITS = []
REPAIR = []
STEPS = 500
WARM_UP = 25
BEFORE = 205
EVERY = 2
