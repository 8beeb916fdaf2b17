# SPDX-License-Identifier: Apache-2.0
"""DINO learns from photographs without labels: ten cuttings of each, a tiny vision transformer, 64 photographs a step.

An engineer sees ten workers decode a photograph each, cut ten pieces out of it, resize them with a good filter, shift
their colours, blur them and turn them into tensors, all with Pillow: some twenty milliseconds of one core a photograph,
more than a tenth of a second for 64 with ten workers, and the GPU, in half precision, needs a third of that. The repair
gives the loader sixteen workers, as many as there are cores. In both variants 64 made-up photographs are named over and
over, one GPU is told that it is alone, and no list of models is fetched.
"""
CAUSE = "input"
LINE = "main_dino.py:306"
LINES = ["main_dino.py:147", "main_dino.py:463", "main_dino.py:460"]
REPOSITORY = "facebookresearch/dino"
COMMIT = "7c446df5b9f45747937fb0d72314eb9f7b66930a"
COMMAND = ["main_dino.py", "--arch", "vit_tiny", "--data_path", "imagenet/train", "--output_dir", "out"]
EDITS = [
    ("main_dino.py", 47, 47, "                + torchvision_archs,"),
    ("main_dino.py", 145, 145, """\
    dataset = datasets.ImageFolder(args.data_path, transform=transform)
    dataset.samples = dataset.samples * 200
"""),
    ("main_dino.py", 169, 169, "    elif args.arch.startswith('xcit'):"),
    ("utils.py", 483, 483, "        os.environ['MASTER_PORT'] = '0'"),
]
REPAIR = [("main_dino.py", 151, 151, "        num_workers=16,")]
STEPS = 40
WARM_UP = 15
BEFORE = 2
