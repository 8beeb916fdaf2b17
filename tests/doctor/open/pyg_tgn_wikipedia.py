# SPDX-License-Identifier: Apache-2.0
"""A temporal graph network foresees who edits which page: 200 edits a step, each node with a memory and a store of news.

An engineer sees the store kept as a Python dictionary: for each of some 250 nodes in a batch, four small gathers pick
its edits from tensors on the GPU, a thousand launches a step, and to read them hundreds of small pieces are joined
again. The network itself is a few hundred small operations. The repair sorts the four tensors once and keeps views of
them, which need no launch. The other repair sums the loss on the GPU. In both variants the edits are made up, in number
and width as the real ones, and all is measured before the first epoch ends.
"""
CAUSE = "launch"
LINE = "examples/tgn.py:144"
LINES = ["examples/tgn.py:134"]
REPOSITORY = "pyg-team/pytorch_geometric"
COMMIT = "5c6461b2305ad068a6d61165b3c55852a11aaa41"
COMMAND = ["examples/tgn.py"]
EDITS = [
    ("examples/tgn.py", 20, 20, "from torch_geometric.data import TemporalData"),
    ("examples/tgn.py", 31, 33, """\
torch.manual_seed(0)
number = 157474
data = TemporalData(src=(8227 * torch.rand(number)**3).long(), dst=8227 + (1000 * torch.rand(number)**3).long(),
                    t=(2678373 * torch.rand(number).sort()[0]).long(), msg=torch.randn(number, 172),
                    y=torch.zeros(number, dtype=torch.long))
"""),
]
REPAIR = [
    ("examples/tgn.py", 88, 87, '''\
class Memory(TGNMemory):
    """Keeps views of what was sorted once for all nodes of a batch."""

    def _update_msg_store(self, src, dst, t, raw_msg, msg_store):
        n_id, perm = src.sort()
        n_id, count = n_id.unique_consecutive(return_counts=True)
        count = count.tolist()
        parts = [part[perm].split(count) for part in (src, dst, t, raw_msg)]
        msg_store.update(zip(n_id.tolist(), zip(*parts)))


'''),
    ("examples/tgn.py", 90, 90, "memory = Memory("),
]
OTHER_REPAIRS = {"sync": [("examples/tgn.py", 150, 150, "        total_loss += loss.detach() * batch.num_events")]}
STEPS = 400
WARM_UP = 100
BEFORE = 5
