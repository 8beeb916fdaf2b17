# SPDX-License-Identifier: Apache-2.0
"""https://github.com/PaddlePaddle/Paddle/issues/14861 (also pytorch/pytorch#81162)

With sparse gradients for the embeddings, which ought to spare work, training is much slower than without them.

Cause: the tables are small and there are many of them. For each, the sparse optimizer merges the rows that occur twice,
and the host has to wait for their number, so the queue is drained again and again among tiny kernels.
Line: tables_with_sparse_gradients.py:step, its call of rare.step()
Remedy: dense gradients and one fused update of all tables.
"""
import torch
from torch import nn

import blind
import training


class Recommender(nn.Module):
    def __init__(self, tables, rows, size, width, depth, sparse):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, size, sparse=sparse) for _ in range(tables))
        layers = [nn.Linear(tables * size, width), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.tower = nn.Sequential(*layers, nn.Linear(width, 1)).to(torch.bfloat16)

    def forward(self, ids):
        rows = torch.cat([table(column) for table, column in zip(self.tables, ids.unbind())], dim=1)
        return self.tower(rows.to(torch.bfloat16))


def main():
    loop = blind.Loop("tables_with_sparse_gradients", "sync", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    tables, rows, size, batch = loop.size(12, 2), loop.size(20000, 50), loop.size(64, 4), loop.size(8192, 16)
    with torch.device(device):
        model = Recommender(tables, rows, size, loop.size(4096, 16), loop.size(6, 1), loop.planted)
        ids = torch.randint(0, rows, (4, tables, batch))
        clicked = torch.rand(batch, 1).round()
    weights = list(model.tables.parameters())
    rare = torch.optim.SparseAdam(weights, lr=1e-3) if loop.planted else torch.optim.Adam(weights, lr=1e-3, fused=True)
    common = torch.optim.SGD(model.tower.parameters(), lr=1e-3)

    def step(i):
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids[i % 4]).float(), clicked)
        rare.zero_grad(set_to_none=True)
        common.zero_grad(set_to_none=True)
        loss.backward()
        common.step()
        rare.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
