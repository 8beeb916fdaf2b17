# SPDX-License-Identifier: Apache-2.0
"""PointNet++ in plain PyTorch tells forty kinds of things apart by 1024 points; 24 clouds a step, Adam.

An engineer sees farthest_point_sample pick 512 and then 128 points one after another in Python, and in every turn of
that loop `distance[mask] = dist[mask]`: a boolean mask on either side, and for each the host waits until the GPU has
counted what is set. That is 1280 waits a step, between kernels of a few microseconds. The repair says the same with
torch.minimum, which asks for nothing; what is left is launches. The other repair scales and shifts the clouds of a
batch at once instead of one by one in the training loop. In both variants the clouds are made up and were processed
before, as the option --process_data does, and the process keeps to the GPU that it was given.
"""
CAUSE = "sync"
LINE = "models/pointnet2_utils.py:82"
REPOSITORY = "yanx27/Pointnet_Pointnet2_pytorch"
COMMIT = "eb64fe0b4c24055559cea26299cb485dcb43d8dd"
COMMAND = ["train_classification.py", "--model", "pointnet2_cls_ssg", "--log_dir", "pointnet2_cls_ssg", "--process_data"]
EDITS = [("train_classification.py", 87, 87, "")]
REPAIR = [("models/pointnet2_utils.py", 81, 82, "        distance = torch.minimum(distance, dist)")]
OTHER_REPAIRS = {"host": [
    ("train_classification.py", 180, 181, """\
            points[:, :, 0:3] *= np.random.uniform(0.8, 1.25, (len(points), 1, 1))
            points[:, :, 0:3] += np.random.uniform(-0.1, 0.1, (len(points), 1, 3))
"""),
]}
STEPS = 80
WARM_UP = 10
