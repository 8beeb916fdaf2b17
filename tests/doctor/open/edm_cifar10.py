# SPDX-License-Identifier: Apache-2.0
"""EDM learns CIFAR-10's pictures by taking noise away: a U-Net of 56 M weights, 64 pictures of 32 x 32 a step, Adam.

An engineer sees the script forbid TF32, for products and for convolutions, and train in float32: the convolutions are
nearly all of the arithmetic, and on this GPU they run without its tensor cores, at a tenth of what it can do. The
repair allows TF32. In both variants pictures are made up, the script is given one GPU's share of its batch of 512,
options are given without the package click, one GPU is told that it is alone, and no snapshot is written.
"""
CAUSE = "precision"
LINE = "training/networks.py:87"
LINES = ["training/training_loop.py:55", "training/training_loop.py:130", "training/training_loop.py:132"]
REPOSITORY = "NVlabs/edm"
COMMIT = "008a4e5316c8e3bfe61a62f874bddba254295afb"
COMMAND = ["train.py"]
EDITS = [
    ("train.py", 14, 14, ""),
    ("train.py", 41, 79, ""),
    ("train.py", 92, 92, "    torch.multiprocessing.set_start_method('fork', force=True)"),
    ("train.py", 234, 234, """\
    main(outdir='training-runs', data='datasets/cifar10-32x32.zip', cond=True, arch='ddpmpp', precond='edm',
         duration=200, batch=64, batch_gpu=None, cbase=None, cres=None, lr=10e-4, ema=0.5, dropout=0.13, augment=0.12,
         xflip=False, fp16=False, ls=1, bench=True, cache=True, workers=1, desc=None, nosubdir=False, tick=50,
         snap=None, dump=None, seed=1, transfer=None, resume=None, dry_run=False)
"""),
    ("dnnlib/util.py", 22, 22, ""),
    ("dnnlib/util.py", 31, 31, ""),
    ("torch_utils/distributed.py", 18, 18, "        os.environ['MASTER_PORT'] = '0'"),
    ("torch_utils/misc.py", 116, 116, "        super().__init__()"),
    ("training/training_loop.py", 15, 15, ""),
    ("training/training_loop.py", 165, 165, ""),
]
REPAIR = [("training/training_loop.py", 55, 56, """\
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
""")]
STEPS = 80
WARM_UP = 8
BEFORE = 3
