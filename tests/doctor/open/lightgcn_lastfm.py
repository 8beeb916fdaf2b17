# SPDX-License-Identifier: Apache-2.0
"""LightGCN learns what listeners like from 42 000 pairs of Last.fm's: a graph of 6 381 nodes, 2048 pairs a step, Adam.

An engineer sees the GPU idle for a fifth of a second at the start of every epoch of 21 steps: a Python loop draws a
listener, a liked and an unliked artist 42 000 times, five microseconds each, while the steps of the epoch together take
a third of that. The repair draws all at once with NumPy and draws again those that were liked after all. The other
repair keeps each step's loss on the GPU and reads the sum once an epoch. In both variants the tables are read without
pandas, logging's package is left out, and no epoch begins with a test; the compiled sampler, which the program does
without where it cannot be built, is not there.
"""
CAUSE = "host"
LINE = "code/utils.py:78"
LINES = ["code/utils.py:61", "code/Procedure.py:32", "code/utils.py:87"]
REPOSITORY = "gusye1234/LightGCN-PyTorch"
COMMIT = "947ca2b3b1d2d3545b114145710cb06c4e57b3d2"
FOLDER = "code"
COMMAND = ["main.py", "--decay=1e-4", "--lr=0.001", "--layer=3", "--seed=2020", "--dataset=lastfm", "--topks=[20]",
           "--recdim=64", "--tensorboard=0"]
EDITS = [
    ("code/main.py", 6, 6, ""),
    ("code/main.py", 33, 35, "    raise SystemExit('no package for it')"),
    ("code/main.py", 43, 45, ""),
    ("code/Procedure.py", 20, 20, ""),
    ("code/utils.py", 17, 17, ""),
    ("code/utils.py", 21, 21, "    raise ImportError('no compiled sampler')"),
    ("code/dataloader.py", 15, 15, ""),
    ("code/dataloader.py", 83, 83, "        trainData = np.loadtxt(join(path, 'data1.txt'), np.int64, usecols=(0, 1))"),
    ("code/dataloader.py", 85, 85, "        testData  = np.loadtxt(join(path, 'test1.txt'), np.int64, usecols=(0, 1))"),
    ("code/dataloader.py", 87, 87, "        trustNet  = np.loadtxt(join(path, 'trustnetwork.txt'), np.int64)"),
    ("code/dataloader.py", 95, 95, "        self.trainUser = np.array(trainData[:, 0])"),
    ("code/dataloader.py", 97, 97, "        self.trainItem = np.array(trainData[:, 1])"),
    ("code/dataloader.py", 99, 99, "        self.testUser  = np.array(testData[:, 0])"),
    ("code/dataloader.py", 101, 101, "        self.testItem  = np.array(testData[:, 1])"),
]
REPAIR = [("code/utils.py", 75, 96, """\
    if not hasattr(dataset, 'liked'):
        dataset.counts = np.array([len(items) for items in allPos])
        dataset.starts = np.cumsum(dataset.counts) - dataset.counts
        dataset.flat = np.concatenate(allPos)
        dataset.liked = np.zeros((dataset.n_users, dataset.m_items), dtype=bool)
        dataset.liked[np.repeat(np.arange(dataset.n_users), dataset.counts), dataset.flat] = True
    users = users[dataset.counts[users] > 0]
    places = (np.random.random(len(users)) * dataset.counts[users]).astype(np.int64)
    pos = dataset.flat[dataset.starts[users] + places]
    neg = np.random.randint(0, dataset.m_items, len(users))
    again = np.flatnonzero(dataset.liked[users, neg])
    while len(again):
        neg[again] = np.random.randint(0, dataset.m_items, len(again))
        again = again[dataset.liked[users[again], neg[again]]]
    return np.stack([users, pos, neg], axis=1)
""")]
OTHER_REPAIRS = {"sync": [("code/utils.py", 50, 50, "        return loss.detach()")]}
STEPS = 315
WARM_UP = 42
BEFORE = 2
