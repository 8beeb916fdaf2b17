# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/41162 (also pytorch/pytorch#15245)

Rows of a small table are picked for very many places by plain indexing. Forward this is quick, but the backward pass
takes many times as long as everything else, and it is the worse the more often the same row is picked.

Cause: the gradient of an indexing adds up all places of a row one after the other, in sorted order; an edge has one of
twelve types, so that a few threads go through tens of thousands of rows each, while the rest of the GPU has nothing.
Line: edge_types_looked_up_by_indexing.py:EdgeNetwork.forward (its backward pass)
Remedy: torch.nn.functional.embedding, whose gradient cuts long runs of the same row into parts.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training

TYPES, NEIGHBOURS = 12, 16


class EdgeNetwork(nn.Module):
    """Messages from the neighbour's features and the edge's type; a node takes the mean of its sixteen."""

    def __init__(self, width, indexed):
        super().__init__()
        self.indexed = indexed
        self.types = nn.Parameter(torch.randn(TYPES, width))
        self.message, self.update = training.WideNetwork(width, width, width), nn.Linear(width, 32)

    def forward(self, neighbours, types):
        kinds = self.types[types] if self.indexed else F.embedding(types, self.types)
        messages = self.message(neighbours + kinds)
        return self.update(messages.view(-1, NEIGHBOURS, messages.shape[-1]).mean(dim=1))


def main():
    loop = blind.Loop("edge_types_looked_up_by_indexing", "memory")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    nodes, width = loop.size(16384, 24), loop.size(768, 16)
    with torch.device(device):
        model = EdgeNetwork(width, loop.planted)
        model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
        batches = []
        for _ in range(3):  # sampled neighbourhoods, as a loader has left them on the GPU
            features = torch.randn(nodes * NEIGHBOURS, width).to(model.types.dtype)
            kinds = torch.randint(0, TYPES, (nodes * NEIGHBOURS,))
            batches.append((features, kinds, torch.randint(0, 32, (nodes,))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(i):
        features, kinds, classes = batches[i % len(batches)]
        loss = F.cross_entropy(model(features, kinds).float(), classes)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
