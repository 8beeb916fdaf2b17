# SPDX-License-Identifier: Apache-2.0
"""A tiny neural radiance field: three linear layers at 320 000 points of one picture of 100 x 100 rays a step.

An engineer sees 79 chunks of 4096 points go through the network one after another, forward and back, in kernels of
microseconds; the chunks are there to spare the memory of old GPUs. The repair makes the chunk as large as the picture.
Pictures and poses are random; the readers of other data sets, which need packages of their own, are not imported.
"""
CAUSE = "launch"
LINE = "tiny_nerf.py:147"
REPOSITORY = "krrish94/nerf-pytorch"
COMMIT = "a14357da6cada433d28bf11a45c7bcaace76c06e"
COMMAND = ["tiny_nerf.py"]
EDITS = [
    ("nerf/__init__.py", 2, 3, ""),
    ("nerf/nerf_helpers.py", 6, 6, ""),
    ("tiny_nerf.py", 246, 246, "    display_every = 100000"),
]
REPAIR = [("tiny_nerf.py", 239, 239, "    chunksize = 320000")]
STEPS = 250
