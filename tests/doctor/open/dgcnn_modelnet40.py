# SPDX-License-Identifier: Apache-2.0
"""DGCNN learns to tell 40 shapes apart: twenty neighbours of each of 1024 points, four times, 32 clouds a step, SGD.

An engineer sees tensors of 655 360 pairs of neighbours and up to 256 channels, 670 megabytes, written and read again by
repeating, joining, transposing, normalizing, activating, and taking the greatest, forwards and backwards, which takes
most of the step; the products between them take little. The repair compiles the network. The other repair keeps losses
and answers on the GPU, which are fetched at every step. In both variants the clouds are made up and read from a file of
another kind, and no epoch ends with a test.
"""
CAUSE = "memory"
LINE = "main_cls.py:94"
LINES = ["model.py:60", "model.py:147", "main_cls.py:96"]
REPOSITORY = "antao97/dgcnn.pytorch"
COMMIT = "07d534c2702905010ec9991619f552d8cacae45b"
COMMAND = ["main_cls.py", "--exp_name=dgcnn_cls", "--num_points=1024", "--k=20", "--use_sgd=True"]
EDITS = [
    ("main_cls.py", 29, 29, ""),
    ("main_cls.py", 112, 152, "        continue"),
    ("util.py", 7, 7, ""),
    ("data.py", 19, 19, ""),
    ("data.py", 23, 23, ""),
    ("data.py", 78, 91, """\
    number = {'train': 9840, 'test': 2468}[partition]
    all_data = np.load('data/modelnet40.npy')[np.arange(number) % 640]
    all_label = (np.arange(number) % 40)[:, None]
"""),
]
REPAIR = [("main_cls.py", 62, 62, "    model = nn.DataParallel(torch.compile(model))")]
OTHER_REPAIRS = {"sync": [("main_cls.py", 100, 102, """\
            train_loss += loss.detach() * batch_size
            train_true.append(label)
            train_pred.append(preds)
""")]}
STEPS = 120
WARM_UP = 10
BEFORE = 5
