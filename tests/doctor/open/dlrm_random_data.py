# SPDX-License-Identifier: Apache-2.0
"""A recommendation model on random data: eight tables of a million rows, 512 samples a step, plain gradient descent.

An engineer sees the loader make every batch in the training loop, in two nested Python loops: for each table and each
sample two draws, np.unique over up to a hundred indices, and a list that grows; at the end tensors from eight lists of
25 000 Python integers. That is a hundred milliseconds or two, while the GPU needs a few for its lookups and small
layers. The repair is an option of the script, --num-workers. The other repair keeps the loss on the GPU and measures no times, for
both of which the loop waits. The options are those of the repository's benchmark with fewer samples; in both variants
nothing is drawn, no profiler is set up, one GPU is used, and a package that only the test needs is left out.
"""
CAUSE = "input"
LINE = "dlrm_s_pytorch.py:1541"
REPOSITORY = "facebookresearch/dlrm"
COMMIT = "090956ee2319ddd349a42232958aefccfe3f7b0a"
COMMAND = ["dlrm_s_pytorch.py", "--mini-batch-size=512", "--num-batches=1000", "--data-generation=random",
           "--arch-mlp-bot=512-512-64", "--arch-mlp-top=1024-1024-1024-1", "--arch-sparse-feature-size=64",
           "--arch-embedding-size=1000000-1000000-1000000-1000000-1000000-1000000-1000000-1000000",
           "--num-indices-per-lookup=100", "--arch-interaction-op=dot", "--numpy-rand-seed=727", "--print-freq=100",
           "--print-time", "--use-gpu"]
EDITS = [
    ("dlrm_s_pytorch.py", 80, 80, ""),
    ("dlrm_s_pytorch.py", 101, 101, '''\


class SummaryWriter:
    """Takes what would be drawn."""

    def __init__(self, *_):
        pass

    def add_scalar(self, *_):
        pass

'''),
    ("dlrm_s_pytorch.py", 1086, 1086, "            ngpus = 1"),
    ("dlrm_s_pytorch.py", 1513, 1515, "    with warnings.catch_warnings() as prof:"),
]
REPAIR = [("dlrm_s_pytorch.py", 963, 963, '    parser.add_argument("--num-workers", type=int, default=12)')]
OTHER_REPAIRS = {"sync": [
    ("dlrm_s_pytorch.py", 124, 125, ""),
    ("dlrm_s_pytorch.py", 1592, 1592, "                    L = E.detach()"),
]}
STEPS = 60
WARM_UP = 5
