# SPDX-License-Identifier: Apache-2.0
"""MeshCNN tells thirty kinds of meshes apart by their 750 edges, which four layers collapse to 180; 4 meshes a step, Adam.

An engineer sees MeshPool collapse one edge after another in Python, two hundred for each mesh and step: dozens of reads
of single elements of NumPy arrays, sets of vertices, lists that are rebuilt. For each pair of edges that become one it
also adds two rows of a matrix that lies on the GPU, a launch for 750 numbers. The convolutions between are a few
milliseconds. The repair, the first of several, keeps that matrix in NumPy while edges collapse and copies it once. The
other repair lets the GPU wait less for indices: it copies those of all meshes of a batch at once instead of one by one.
In both variants the meshes are made up, a quarter as many a step, and two lines say what newer versions of NumPy want.
"""
CAUSE = "host"
LINE = "models/layers/mesh_pool.py:53"
REPOSITORY = "ranahanocka/MeshCNN"
COMMIT = "5bf0b899d48eb204b9b73bc1af381be20f4d7df1"
COMMAND = ["train.py", "--dataroot", "datasets/shrec_16", "--name", "shrec16", "--ncf", "64", "128", "256", "256",
           "--pool_res", "600", "450", "300", "180", "--norm", "group", "--resblocks", "1", "--flip_edges", "0.2",
           "--slide_verts", "0.2", "--num_aug", "20", "--niter_decay", "100", "--batch_size", "4"]
EDITS = [
    ("train.py", 6, 6, ""),
    ("train.py", 56, 58, ""),
    ("models/layers/mesh_pool.py", 47, 47, "        mask = np.ones(mesh.edges_count, dtype=bool)"),
    ("models/layers/mesh_prepare.py", 12, 13, """\
        ve = np.empty(len(mesh_data.ve), dtype=object)
        ve[:] = mesh_data.ve
        np.savez_compressed(load_path, gemm_edges=mesh_data.gemm_edges, vs=mesh_data.vs, edges=mesh_data.edges,
                            edges_count=mesh_data.edges_count, ve=ve, v_mask=mesh_data.v_mask,
"""),
]
REPAIR = [
    ("models/layers/mesh_union.py", 1, 1, "import numpy as np\nimport torch"),
    ("models/layers/mesh_union.py", 9, 9, """\
        self.device = device
        self.groups = np.eye(n, dtype=np.float32)
"""),
    ("models/layers/mesh_union.py", 39, 40, """\
        groups = torch.from_numpy(self.groups[mask]).to(self.device)
        self.groups = torch.clamp(groups, 0, 1).transpose_(1, 0)
"""),
]
OTHER_REPAIRS = {"copy": [
    ("models/layers/mesh_conv.py", 22, 22, """\
        G = np.zeros((len(mesh), x.shape[2], 5), dtype=np.float32)
        for i, m in enumerate(mesh):
            G[i, :m.edges_count, 0] = np.arange(m.edges_count)
            G[i, :m.edges_count, 1:] = m.gemm_edges
        G = torch.from_numpy(G).to(x.device)
"""),
    ("models/layers/mesh_conv.py", 1, 1, "import numpy as np\nimport torch"),
]}
STEPS = 40
WARM_UP = 5
