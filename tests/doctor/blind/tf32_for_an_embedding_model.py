# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/FBGEMM/pull/4767.

The compiler warns that the tensor cores are available but TF32 is not enabled, so our recommendation model must be
losing a lot of speed on this card.

Cause: nearly all of the time goes into reading embedding rows; the fp32 products of the small tower are a few percent.
Line: tf32_for_an_embedding_model.py:look_up.
Remedy: `fixed` turns TF32 on, as the warning asks.
Trap: the obvious remedy brings 1 to 3% here (1.6% in the thread); the look-ups are as fast as memory allows.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


def look_up(tables, ids):
    """One pooled row for each feature; the tables come from last night's training and stay frozen."""
    with torch.no_grad():
        return torch.stack([F.embedding_bag(ids[f], table, mode="sum") for f, table in enumerate(tables)], dim=1)


def main():
    # The cause is `none`: there is nothing worth doing.
    loop = blind.Loop("tf32_for_an_embedding_model", "none", steps=1000)
    device = loop.device()
    torch.manual_seed(0)
    if loop.variant in ("fixed", "healthy"):
        torch.set_float32_matmul_precision("high")
    features, rows, width = loop.size(16, 3), loop.size(1_000_000, 500), loop.size(128, 16)
    # The healthy variant is the same model at a batch where the tower's launches matter even less.
    batch = loop.size(98304 if loop.variant == "healthy" else 65536, 32)
    bag = loop.size(24, 4)
    tables = [torch.randn(rows, width, device=device) for _ in range(features)]
    ids = torch.randint(0, rows, (features, batch, bag), device=device)
    click = torch.rand(batch, 1, device=device).round()
    tower = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width // 2), nn.ReLU(),
                          nn.Linear(width // 2, 1)).to(device)
    optimizer = torch.optim.SGD(tower.parameters(), lr=1e-2)

    def step(i):
        pooled = look_up(tables, ids)
        loss = F.binary_cross_entropy_with_logits(tower(pooled.mean(1)), click)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
