# SPDX-License-Identifier: Apache-2.0
"""A generative adversarial network of five convolutions each (64 x 64 pixels, 64 pictures a step) on a folder of faces.

An engineer sees three short passes of small convolutions, some five milliseconds, wait for the next batch: two
processes decode, shrink and normalize 64 JPEG files of 178 x 218 pixels, about a millisecond each. The repair gives the
loader twelve processes that live on between epochs. The pictures are made by a script, in the size and number of bytes
of a well-known set of faces. The other repair reads the five numbers that are printed only at every fiftieth step.
"""
CAUSE = "input"
LINE = "dcgan/main.py:223"
REPOSITORY = "pytorch/examples"
COMMIT = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
FOLDER = "dcgan"
COMMAND = ["main.py", "--dataset", "folder", "--dataroot", "faces", "--accel", "--niter", "1000"]
EDITS = []
REPAIR = [("dcgan/main.py", 108, 108,
           "                                         shuffle=True, num_workers=12, persistent_workers=True)")]
OTHER_REPAIRS = {"sync": [
    ("dcgan/main.py", 237, 237, "        D_x = output.detach().mean()"),
    ("dcgan/main.py", 246, 246, "        D_G_z1 = output.detach().mean()"),
    ("dcgan/main.py", 258, 258, "        D_G_z2 = output.detach().mean()"),
    ("dcgan/main.py", 261, 261,
     "        if i % 50 == 0: print('[%d/%d][%d/%d] Loss_D: %.4f Loss_G: %.4f D(x): %.4f D(G(z)): %.4f / %.4f'"),
]}
STEPS = 180
WARM_UP = 10
BEFORE = 5
EVERY = 2
