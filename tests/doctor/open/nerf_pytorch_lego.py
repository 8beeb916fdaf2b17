# SPDX-License-Identifier: Apache-2.0
"""A neural radiance field as in the paper: 1024 rays a step, 64 and then 192 points on each, two networks, Adam.

An engineer sees 260 000 points a step go through nine dense layers of width 256 in float32, without TF32, which the
script never allows: the products are two thirds of the GPU's time, and the tensor cores idle. The repair is one line
that allows TF32. The other repair draws the pixels on the GPU: the script has NumPy permute all 160 000 of an image to
take 1024 of them. In both variants the images and cameras are made up, the options of configs/lego.txt stand on the
command line, and the crops of the first 500 of 200 000 steps are left out.
"""
CAUSE = "precision"
LINE = "run_nerf_helpers.py:100"
REPOSITORY = "yenchenlin/nerf-pytorch"
COMMIT = "63a5a630c9abd62b0f21c08703d0ac2ea7d4b9dd"
COMMAND = ["run_nerf.py", "--expname", "blender_paper_lego", "--basedir", "./logs", "--dataset_type", "blender",
           "--no_batching", "--use_viewdirs", "--white_bkgd", "--lrate_decay", "500", "--N_samples", "64",
           "--N_importance", "128", "--N_rand", "1024", "--precrop_iters", "0", "--half_res"]
EDITS = [
    ("run_nerf.py", 3, 3, ""),
    ("run_nerf.py", 12, 12, ""),
    ("run_nerf.py", 16, 19, '''\


def load_blender_data(*_):
    """As many images and cameras as in the real set, in the types that its reader returns."""
    random = np.random.default_rng(0)
    small = random.random((138, 50, 50, 4))
    poses = np.tile(np.eye(4, dtype=np.float32), (138, 1, 1))
    poses[:, 2, 3] = 4.0
    split = [np.arange(0, 100), np.arange(100, 113), np.arange(113, 138)]
    return small.repeat(8, axis=1).repeat(8, axis=2), poses, torch.eye(4).repeat(40, 1, 1), [400, 400, 555.6], split

'''),
    ("run_nerf.py", 423, 425, """\
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument('--config', default=None,
"""),
]
REPAIR = [("run_nerf.py", 876, 875, "    torch.set_float32_matmul_precision('high')")]
OTHER_REPAIRS = {"host": [
    ("run_nerf.py", 752, 752,
     "                select_inds = torch.randperm(coords.shape[0], device=device)[:N_rand]  # (N_rand,)"),
]}
STEPS = 180
