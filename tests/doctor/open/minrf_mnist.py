# SPDX-License-Identifier: Apache-2.0
"""minRF learns digits with rectified flow: a small transformer over 32 x 32 pixels, 256 digits a step, Adam.

An engineer sees a loader without workers: for each of 256 digits a step the process that trains makes a picture, turns
it into a tensor, pads and normalizes it, some twenty milliseconds in which the GPU has nothing to do. Then each loss is
counted by its time, and each time is read from the GPU twice, 512 waits a step of some twenty microseconds. The repair
gives the loader eight workers. The other repair reads the times once. In both variants nothing is logged elsewhere,
nothing is drawn after an epoch, and the digits are made up.
"""
CAUSE = "input"
LINE = "rf.py:112"
LINES = ["rf.py:105"]
REPOSITORY = "cloneofsimo/minRF"
COMMIT = "4fc10e0cc8ba976152c7936a1af9717209f03e18"
COMMAND = ["rf.py"]
EDITS = [
    ("rf.py", 58, 58, ""),
    ("rf.py", 107, 107, ""),
    ("rf.py", 119, 119, "            loss.item()"),
    ("rf.py", 130, 161, ""),
]
REPAIR = [("rf.py", 105, 105, """\
    dataloader = DataLoader(mnist, batch_size=256, shuffle=True, drop_last=True, num_workers=8, pin_memory=True,
                            persistent_workers=True)
""")]
OTHER_REPAIRS = {"sync": [("rf.py", 25, 25, "        ttloss = [(tv, tloss) for tv, tloss in zip(t.tolist(), tlist)]")]}
STEPS = 200
WARM_UP = 15
BEFORE = 5
