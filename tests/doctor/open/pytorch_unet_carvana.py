# SPDX-License-Identifier: Apache-2.0
"""A U-Net of 31 M parameters that segments photographs of cars, one of 959 x 640 pixels a step, channels last, float32.

An engineer sees convolutions (TF32 at best), batch norm and ReLU over large float32 activations fill the GPU; the
loader's processes, one a core, decode and scale the next photographs meanwhile. The repair is the script's own option
--amp. In both variants nothing is sent to a service and no evaluation falls into an epoch; the photographs are made up.
"""
CAUSE = "precision"
LINE = "train.py:100"
REPOSITORY = "milesial/Pytorch-UNet"
COMMIT = "21d7850f2af30a9695bbeea75f3136aa538cfc4a"
COMMAND = ["train.py"]
EDITS = [
    ("train.py", 16, 16, ""),
    ("train.py", 58, 62, ""),
    ("train.py", 123, 127, ""),
    ("train.py", 131, 131, "                division_step = 0"),
]
REPAIR = [("train.py", 180, 180, "    parser.add_argument('--amp', action='store_true', default=True)")]
STEPS = 180
