# SPDX-License-Identifier: Apache-2.0
"""DeepLabV3+ with MobileNet learns to mark things in photographs: sixteen pieces of 513 x 513 pixels a step, SGD.

An engineer sees two workers read a photograph and its mask, stretch both by up to two, cut a piece out and make floats
of it, five milliseconds or more for each, and put sixteen together, fifty megabytes: that takes longer than the
network's step, and the GPU waits. The repair starts twelve workers. The other repair runs the network under bf16
autocast, in which the GPU is done sooner and waits longer. In both variants the photographs are made up, weights are
not fetched, nothing is drawn, and nothing is tested in between.
"""
CAUSE = "input"
LINE = "main.py:327"
LINES = ["main.py:238", "datasets/voc.py:147", "datasets/voc.py:144"]
REPOSITORY = "VainF/DeepLabV3Plus-Pytorch"
COMMIT = "4e1087de98bc49d55b9239ae92810ef7368660db"
COMMAND = ["main.py", "--model", "deeplabv3plus_mobilenet", "--gpu_id", "0", "--year", "2012_aug", "--crop_val",
           "--lr", "0.01", "--crop_size", "513", "--batch_size", "16", "--output_stride", "16"]
EDITS = [
    ("utils/visualizer.py", 1, 1, ""),
    ("main.py", 224, 224, ""),
    ("main.py", 247, 247, "    model = network.modeling.__dict__[opts.model](num_classes=opts.num_classes, "
                          "output_stride=opts.output_stride, pretrained_backbone=False)"),
    ("main.py", 350, 375, ""),
]
REPAIR = [("main.py", 239, 239, "        train_dst, batch_size=opts.batch_size, shuffle=True, num_workers=12,")]
OTHER_REPAIRS = {"precision": [("main.py", 334, 335, """\
            with torch.autocast('cuda', torch.bfloat16):
                outputs = model(images)
            loss = criterion(outputs.float(), labels)
""")]}
STEPS = 100
WARM_UP = 10
BEFORE = 2
