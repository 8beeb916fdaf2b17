# SPDX-License-Identifier: Apache-2.0
"""DeepSDF learns the forms of sofas: a million points of 64 sofas a step, each with a code of 256 numbers for its sofa.

An engineer sees the table of codes stay on the CPU, in a script that moves only its network: a row of the table is
copied for each of a million points, joined to the point, a gigabyte of ordinary memory goes to the GPU, and as much
comes back to be summed into the table, with norms of a million rows between. All that takes seconds, and the network
three tenths of one. The repair puts the table, the numbers of the sofas and the points on the GPU. The other repair
lets the network use TF32. In both variants sixteen files of made-up distances, as large as the real ones, stand for
the 1628, and modules that draw surfaces are not loaded.
"""
CAUSE = "host"
LINE = "train_deep_sdf.py:491"
LINES = ["train_deep_sdf.py:493", "train_deep_sdf.py:511", "train_deep_sdf.py:365"]
REPOSITORY = "facebookresearch/DeepSDF"
COMMIT = "48c19b8d49ed5293da4edd7da8c3941444bc5cd7"
COMMAND = ["train_deep_sdf.py", "-e", "examples/sofas"]
EDITS = [
    ("train_deep_sdf.py", 257, 257, '    logging.info("Experiment description: \\n" + " ".join(specs["Description"]))'),
    ("deep_sdf/__init__.py", 5, 6, ""),
    ("deep_sdf/data.py", 20, 22,
     '                instance_filename = os.path.join(dataset, class_name, "%02d.npz" % (len(npzfiles) % 16))'),
]
REPAIR = [
    ("train_deep_sdf.py", 365, 365,
     "    lat_vecs = torch.nn.Embedding(num_scenes, latent_size, max_norm=code_bound).cuda()"),
    ("train_deep_sdf.py", 479, 479,
     "                indices.cuda().unsqueeze(-1).repeat(1, num_samp_per_scene).view(-1),"),
    ("train_deep_sdf.py", 493, 493, "                input = torch.cat([batch_vecs, xyz[i].cuda()], dim=1)"),
]
OTHER_REPAIRS = {"precision": [("train_deep_sdf.py", 331, 330, '    torch.set_float32_matmul_precision("high")')]}
STEPS = 16
WARM_UP = 3
