# SPDX-License-Identifier: Apache-2.0
"""https://github.com/sql-machine-learning/elasticdl/issues/1723 (also lucidrains/tab-transformer-pytorch#20)

Our click data has a great many categorical columns, and the model has an embedding table for each of them. Looking
them up one after the other is inefficient, although every one of the tables is small.

Cause: for each column the host cuts it out of the batch, looks it up, and in the backward pass fills a gradient of its
own: thousands of kernels of a few microseconds each, so that launching them takes longer than the rest of the model.
Line: a_table_for_every_feature.py:forward (of Separate), and loss.backward() in step.
Remedy: one table holds the rows of all columns, each column with an offset, and is looked up once.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Separate(nn.Module):
    def __init__(self, sizes, side):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, side) for size in sizes)

    def forward(self, columns):
        return torch.cat([table(columns[:, i]) for i, table in enumerate(self.tables)], dim=1)


class Joint(nn.Module):
    def __init__(self, sizes, side):
        super().__init__()
        self.table = nn.Embedding(sum(sizes), side)
        self.register_buffer("offsets", torch.tensor([0] + sizes[:-1]).cumsum(0))

    def forward(self, columns):
        return self.table(columns + self.offsets).flatten(1)


class Ranker(nn.Module):
    def __init__(self, looked_up, inputs, width, layers):
        super().__init__()
        self.looked_up = looked_up
        sides = [inputs] + [width] * layers
        self.deep = nn.Sequential(*[part for a, b in zip(sides, sides[1:]) for part in (nn.Linear(a, b), nn.ReLU())])
        self.leave = nn.Linear(width, 1)

    def forward(self, columns):
        return self.leave(self.deep(self.looked_up(columns)))[:, 0]


def main():
    loop = blind.Loop("a_table_for_every_feature", "launch", steps=800)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    columns, side, rows = loop.size(300, 5), loop.size(16, 4), loop.size(4096, 8)
    sizes = [100 + 37 * i % 900 for i in range(columns)]
    with torch.device(device):
        looked_up = (Separate if loop.planted else Joint)(sizes, side)
        model = Ranker(looked_up, columns * side, loop.size(1024, 8), loop.size(3, 1))
        limits = torch.tensor(sizes)
        batches = [(torch.rand(rows, columns) * limits).long() for _ in range(8)]
        clicked = torch.randint(2, (rows,)).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device.type == "cuda")

    def step(i):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(batches[i % len(batches)])
        loss = F.binary_cross_entropy_with_logits(scores.float(), clicked)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
