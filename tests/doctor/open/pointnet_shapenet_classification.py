# SPDX-License-Identifier: Apache-2.0
"""PointNet tells sixteen kinds of things apart by 2500 points of their surface; 32 clouds a step, Adam.

An engineer sees every cloud read from two text files: np.loadtxt parses some 2600 lines of three numbers and as many
labels that a classifier does not even need, two milliseconds or more a cloud, again in every epoch. Four workers do that
for 32 clouds in twenty milliseconds or so; the network needs a third of it. The repair is more of the same, sixteen
workers. The other repair prints loss and accuracy every fiftieth step, the only ones it then waits for. In both variants
no test falls into the training, and the clouds are made up: fewer files, which are listed again and again.
"""
CAUSE = "input"
LINE = "utils/train_classification.py:102"
REPOSITORY = "fxia22/pointnet.pytorch"
COMMIT = "bafbf401e0af19be3262e448c59313fd2be0e421"
COMMAND = ["utils/train_classification.py", "--dataset", "shapenet"]
EDITS = [
    ("pointnet/dataset.py", 10, 10, ""),
    ("utils/train_classification.py", 119, 130, ""),
]
REPAIR = [("utils/train_classification.py", 21, 21,
           "    '--workers', type=int, help='number of data loading workers', default=16)")]
OTHER_REPAIRS = {"sync": [
    ("utils/train_classification.py", 115, 117, """\
        if i % 50 == 0:
            pred_choice = pred.data.max(1)[1]
            correct = pred_choice.eq(target.data).cpu().sum()
            print('[%d: %d/%d] train loss: %f accuracy: %f' % (
                epoch, i, num_batch, loss.item(), correct.item() / float(opt.batchSize)))
"""),
]}
STEPS = 200
