# SPDX-License-Identifier: Apache-2.0
"""A message-passing network predicts a property of small molecules, 128 of them a step, each made a complete graph.

An engineer sees the training loop build every batch itself: for each molecule some forty small operations on the CPU
list all pairs of atoms and measure their distances, a quarter of a millisecond, and then 128 are joined. The GPU works
for a quarter of the time. The repair gives the loader eight workers. The other repair allows TF32 for the products of
the network on the edges, most of the GPU's time. The molecules are made up, 45 000, in the size of the real ones.
"""
CAUSE = "input"
LINE = "examples/qm9_nn_conv.py:111"
REPOSITORY = "pyg-team/pytorch_geometric"
COMMIT = "5c6461b2305ad068a6d61165b3c55852a11aaa41"
COMMAND = ["examples/qm9_nn_conv.py"]
EDITS = [
    ("examples/qm9_nn_conv.py", 9, 9, "from torch_geometric.data import Data, InMemoryDataset"),
    ("examples/qm9_nn_conv.py", 16, 15, '''\

class QM9(InMemoryDataset):
    """As many numbers for a molecule as in the real set: chains of 9 to 27 atoms at random places."""

    def __init__(self, root, transform):
        super().__init__(None, transform)
        torch.manual_seed(0)
        number = 45000
        atoms = torch.randint(9, 28, (number,))
        starts = torch.cat([torch.zeros(1, dtype=torch.long), atoms.cumsum(0)])
        total = int(starts[-1])
        place = torch.arange(total) - starts[:-1].repeat_interleave(atoms)
        first = place[place > 0] - 1
        bonds = torch.stack([torch.stack([first, first + 1], 1), torch.stack([first + 1, first], 1)]).flatten(1)
        bond_starts = torch.cat([torch.zeros(1, dtype=torch.long), (2 * (atoms - 1)).cumsum(0)])
        self._data = Data(x=torch.rand(total, 11), edge_index=bonds, edge_attr=torch.rand(bonds.size(1), 4),
                          y=torch.randn(number, 19), pos=torch.randn(total, 3), z=torch.randint(1, 10, (total,)),
                          idx=torch.arange(number))
        self.slices = {name: starts for name in ("x", "pos", "z")}
        self.slices.update({name: bond_starts for name in ("edge_index", "edge_attr")})
        self.slices.update({name: torch.arange(number + 1) for name in ("y", "idx")})

'''),
]
REPAIR = [("examples/qm9_nn_conv.py", 68, 68,
           "train_loader = DataLoader(train_dataset, batch_size=128, shuffle=True, num_workers=8)")]
OTHER_REPAIRS = {"precision": [("examples/qm9_nn_conv.py", 99, 98, 'torch.set_float32_matmul_precision("high")')]}
STEPS = 100
WARM_UP = 10
BEFORE = 5
