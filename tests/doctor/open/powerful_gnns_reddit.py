# SPDX-License-Identifier: Apache-2.0
"""A graph isomorphism network tells two kinds of discussions apart: 32 graphs of some 430 nodes a step, Adam.

An engineer sees two sparse matrices put together anew for every batch, from Python lists: which node belongs to which
graph is a list of thirteen thousand pairs, and each node's edge to itself two ranges as long, which PyTorch reads
number by number. The GPU waits for that, because the loss is fetched in every step; what it computes is small. The
repair makes the same numbers with arange and repeat_interleave. The other repair sorts each matrix once: a sparse
product does so anew for one that is not marked as sorted, and waits for what it counted. In both variants the graphs
are made up, and nothing is tested in between.
"""
CAUSE = "host"
LINE = "models/graphcnn.py:197"
LINES = ["models/graphcnn.py:133", "models/graphcnn.py:131", "main.py:26"]
REPOSITORY = "weihua916/powerful-gnns"
COMMIT = "9a2ce8ac3e99278307093a464a95caf0fb04b602"
COMMAND = ["main.py", "--dataset", "REDDITBINARY"]
EDITS = [("main.py", 144, 152, "")]
REPAIR = [
    ("models/graphcnn.py", 101, 101, "            self_loop_edge = torch.arange(num_node).repeat(2, 1)"),
    ("models/graphcnn.py", 120, 133, """\
        sizes = torch.tensor([len(graph.g) for graph in batch_graph])
        rows = torch.repeat_interleave(torch.arange(len(batch_graph)), sizes)
        ###average or sum pooling
        elem = 1. / sizes[rows] if self.graph_pooling_type == "average" else torch.ones(len(rows))
        idx = torch.stack([rows, torch.arange(len(rows))])
"""),
]
OTHER_REPAIRS = {"sync": [
    ("models/graphcnn.py", 108, 108, "        return Adj_block.to(self.device).coalesce()"),
    ("models/graphcnn.py", 136, 136, "        return graph_pool.to(self.device).coalesce()"),
]}
STEPS = 300
