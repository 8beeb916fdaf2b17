# SPDX-License-Identifier: Apache-2.0
"""A convolutional GRU sees ten frames of moving digits and foretells ten more, 64 x 64 pixels, four sequences a step.

An engineer sees sixty time steps of a cell in a Python loop, yet each has two convolutions of 5 x 5 over up to 160
channels in float32, seventy microseconds or more on the GPU and more still going back, which Python launches faster:
the GPU is busy with them. The repair runs the network under bf16 autocast. The other repair lets the library time its
kernels and choose any of them, where the script asks for those that always add in the same order. In both variants no
summary is written, two calls are those of newer packages, and the digits that move are made up.
"""
CAUSE = "precision"
LINE = "main.py:153"
REPOSITORY = "jhhuang96/ConvLSTM-PyTorch"
COMMIT = "d44942983c05c66381eeb9f54e88c828e9e37cfc"
COMMAND = ["main.py", "-cgru"]
EDITS = [
    ("main.py", 27, 27, """\
from types import SimpleNamespace


def SummaryWriter(folder):
    return SimpleNamespace(add_scalar=lambda *_: None)


"""),
    ("main.py", 131, 132, "                                                      patience=4)"),
    ("earlystopping.py", 21, 21, "        self.val_loss_min = np.inf"),
]
REPAIR = [("main.py", 153, 153, '            with torch.autocast("cuda", torch.bfloat16):\n'
                                "                pred = net(inputs)  # B,S,C,H,W\n"
                                "            pred = pred.float()")]
OTHER_REPAIRS = {"memory": [("main.py", 63, 64, "torch.backends.cudnn.benchmark = True")]}
STEPS = 180
WARM_UP = 15
BEFORE = 5
