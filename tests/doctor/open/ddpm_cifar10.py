# SPDX-License-Identifier: Apache-2.0
"""A denoising diffusion model learns CIFAR-10: a U-Net of 36 million weights, 128 pictures a step, Adam.

An engineer sees convolutions of 128 to 512 channels, and normalizations and activations between them, fill the GPU in
float32 and move twice the bytes that they need. The repair runs the U-Net and its loss under bf16 autocast. The other
repairs: the average of the weights, a thousand small operations a step, is taken by a handful over lists; the
activation, written as two operations whose factors are kept, is one; and the loss is shown every fiftieth step. In both
variants the pictures are made up, nothing is drawn, logged or saved, and the package that judges pictures is left out.
"""
CAUSE = "precision"
LINE = "main.py:152"
LINES = ["diffusion.py:42", "main.py:153", "model.py:152"]
REPOSITORY = "w86763777/pytorch-ddpm"
COMMIT = "f804ccbd58a758b07f79a3b9ecdfb1beb67258f6"
COMMAND = ["main.py", "--train", "--flagfile", "config/CIFAR10.txt", "--sample_step", "0", "--save_step", "0"]
EDITS = [
    ("main.py", 8, 9, '''\
from types import SimpleNamespace

import numpy as np
from PIL import Image


class CIFAR10(torch.utils.data.Dataset):
    """Pictures from one file instead of the set's archive."""

    def __init__(self, root, train, download, transform):
        self.data, self.transform = np.load("data/cifar10.npy"), transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.transform(Image.fromarray(self.data[i])), i % 10


def SummaryWriter(folder):
    return SimpleNamespace(add_scalar=lambda *_: None, add_image=lambda *_: None, flush=lambda: None)


'''),
    ("main.py", 16, 16, ""),
]
REPAIR = [("main.py", 152, 152, """\
            with torch.autocast("cuda", torch.bfloat16):
                loss = trainer(x_0).mean()
""")]
OTHER_REPAIRS = {
    "launch": [("main.py", 59, 64, """\
    to = [value for value in target.state_dict().values()]
    torch._foreach_lerp_(to, [value for value in source.state_dict().values()], 1 - decay)
""")],
    "memory": [("model.py", 10, 10, "        return F.silu(x)")],
    "sync": [("main.py", 162, 162,
              "            if step % 50 == 0:\n                pbar.set_postfix(loss='%.3f' % loss)")],
}
STEPS = 80
WARM_UP = 10
BEFORE = 5
