# SPDX-License-Identifier: Apache-2.0
"""https://github.com/DeepGraphLearning/torchdrug/issues/173 (why the backward pass, too: dmlc/dgl#427)

In a network on graphs the product with the sparse adjacency is very slow. When I kept the same matrix in another of the
library's sparse formats, an epoch took half as long, 8 minutes instead of 16.

Cause: the matrix is a list of coordinates, put together anew in each layer. For the product the library first sorts
all coordinates and merges equal ones; the backward pass turns the matrix round and does that once more.
Line: adjacency_in_coordinates.py:gathered (its product, and that in the backward pass).
Remedy: the matrix and its transpose are compressed by rows once, when the graph is made.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Compressed(torch.autograd.Function):
    """A product with a constant sparse matrix of which the transpose is known."""

    @staticmethod
    def forward(context, matrix, transposed, x):
        context.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(context, gradient):
        return None, None, context.transposed @ gradient


class Graph:
    """Random edges with weights. compressed: whether the adjacency is made at once, by rows."""

    def __init__(self, nodes, edges, device, compressed):
        self.nodes = nodes
        self.ends = torch.randint(nodes, (2, edges), device=device)
        self.weights = torch.rand(edges, device=device) * nodes / edges
        self.both = [self.by_rows(ends) for ends in (self.ends, self.ends.flip(0))] if compressed else None

    def coordinates(self, ends):
        return torch.sparse_coo_tensor(ends, self.weights, (self.nodes, self.nodes))

    def by_rows(self, ends):
        kept = self.coordinates(ends).coalesce().to_sparse_csr()
        return torch.sparse_csr_tensor(kept.crow_indices().int(), kept.col_indices().int(), kept.values(), kept.shape)

    def gathered(self, x):
        """For each node the weighted sum over its neighbours."""
        if self.both:
            return Compressed.apply(*self.both, x)
        return torch.sparse.mm(self.coordinates(self.ends), x)


class Layer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.around = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, graph, x):
        return self.own(x) + self.around(graph.gathered(x))


def main():
    loop = blind.Loop("adjacency_in_coordinates", "memory", steps=160)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    nodes, edges, width, classes = loop.size(200_000, 60), loop.size(8_000_000, 300), loop.size(64, 8), 16
    graph = Graph(nodes, edges, device, compressed=not loop.planted)
    with torch.device(device):
        layers = nn.ModuleList(Layer(a, b) for a, b in ((width, width), (width, width), (width, classes)))
        features, labels = torch.randn(nodes, width), torch.randint(classes, (nodes,))
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-4, fused=device.type == "cuda")

    def step(i):
        x = features
        for layer in layers:
            x = layer(graph, F.relu(x))
        loss = F.cross_entropy(x, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
