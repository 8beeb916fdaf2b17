# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/12461

A profile of a training step shows the host waiting wherever rows are picked with a boolean mask, and the GPU runs dry
after each of those places.

Cause: the size of `x[mask]` is the number of true entries, which only the GPU knows: the host waits for it at each of
the 30 selections and again for some of them in the backward pass, and cannot launch ahead.
Line: boolean_mask_picks_rows.py:auxiliary_loss
Remedy: keep all rows and weight them with the mask; the same value without its size being needed on the host.
"""
import torch
from torch import nn

import blind


def auxiliary_loss(h, mask, pick):
    """Mean square of the marked rows (about one in fifty)."""
    if pick:
        return h[mask].float().pow(2).mean()
    squares = h.float().pow(2).mean(dim=1)
    return torch.where(mask, squares, torch.zeros_like(squares)).sum() / mask.sum()


class Tower(nn.Module):
    def __init__(self, width, depth, pick):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.probes = nn.ModuleList(nn.Linear(width, 64) for _ in range(depth))
        self.pick = pick

    def forward(self, x, masks):
        total = x.new_zeros((), dtype=torch.float32)
        for layer, probe, mask in zip(self.layers, self.probes, masks):
            x = x + nn.functional.relu(layer(x))
            total = total + auxiliary_loss(probe(x), mask, self.pick)
        return x, total


def main():
    loop = blind.Loop("boolean_mask_picks_rows", "sync", steps=500)
    device = loop.device()
    torch.manual_seed(0)
    depth, width = loop.size(30, 3), loop.size(1536, 16)
    rows = loop.size(32768 if loop.variant == "healthy" else 12288, 128)
    model = Tower(width, depth, loop.planted).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, width, generator=generator).to(device, torch.bfloat16)
    masks = torch.rand(4, depth, rows, generator=generator) < 0.02
    masks[:, :, 0] = True
    masks = masks.to(device)

    def step(i):
        h, auxiliary = model(x, masks[i % 4])
        loss = h.float().mean().pow(2) + 0.1 * auxiliary
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
