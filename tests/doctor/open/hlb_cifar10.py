# SPDX-License-Identifier: Apache-2.0
"""hlb-CIFAR10, once the fastest to 94 percent: a small ResNet in half precision, 1024 small pictures a step, SGD.

An engineer sees what can be done without compiling done: all pictures lie on the GPU and are cut, turned and mixed
there for a whole epoch at once, weights and activations are half as long and lie as tensor cores want them, two
optimizers update all weights with a few operations, and the loss is read once an epoch. The GPU works for longer than
Python needs to launch it. Nothing simple gains a tenth. Both variants are the same: the pictures are made up, and
nothing is tested in between.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "tysam-code/hlb-CIFAR10"
COMMIT = "993965202fc4dc05b699a39db33c00f1c7f647fd"
COMMAND = ["main.py"]
EDITS = [
    ("main.py", 86, 137, """\
data = {split: {'images': torch.randn(number, 3, 32, 32, device=hyp['misc']['device']).half(),
                'targets': F.one_hot(torch.arange(number, device=hyp['misc']['device']) % 10).half()}
        for split, number in (('train', 50000), ('eval', 10000))}
"""),
    ("main.py", 624, 659, ""),
    ("main.py", 660, 660, "    return 0. # nothing is tested"),
]
REPAIR = []
STEPS = 400
WARM_UP = 50
BEFORE = 10
EVERY = 2
