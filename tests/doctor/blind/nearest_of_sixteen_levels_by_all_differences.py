# SPDX-License-Identifier: Apache-2.0
"""https://github.com/artidoro/qlora/issues/299 (also pytorch/ao#315, rajveer43/VeloxQuant-MLX#455)

Weights are rounded to sixteen unevenly spaced levels. The rounding takes far more memory than the weights and more
time than the training step it belongs to; how is the nearest level found efficiently?

Cause: each weight is compared with all levels: a table sixteen times as large as the weights is written, passed over
again for its magnitudes, and once more for the smallest.
Line: nearest_of_sixteen_levels_by_all_differences.py:nearest
Remedy: the levels are sorted, so each weight is looked up among the midpoints between them.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training

LEVELS = [-1.0, -0.70, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0]


def nearest(scaled, levels):
    differences = (scaled.unsqueeze(-1) - levels).abs()
    return differences.argmin(dim=-1)


def nearest_by_midpoints(scaled, levels):
    return torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2, out_int32=True)


class Rounded(nn.Linear):
    """A layer that is trained as it will be used: with its weights rounded, block by block."""

    def __init__(self, inputs, outputs, levels, find, block=64):
        super().__init__(inputs, outputs, bias=False)
        self.levels, self.find, self.block = levels, find, block

    def rounded(self):
        with torch.no_grad():
            blocks = self.weight.view(-1, self.block)
            largest = blocks.abs().amax(dim=1, keepdim=True)
            chosen = self.find(blocks / largest, self.levels)
            near = (self.levels[chosen] * largest).view_as(self.weight)
        return self.weight + (near - self.weight).detach()  # slopes pass straight through

    def forward(self, x):
        return F.linear(x, self.rounded())


def main():
    loop = blind.Loop("nearest_of_sixteen_levels_by_all_differences", "memory")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width, layers = loop.size(8192, 8), loop.size(4096, 64), loop.size(4, 2)
    levels = torch.tensor(LEVELS, dtype=torch.bfloat16, device=device)
    find = nearest if loop.planted else nearest_by_midpoints
    with torch.device(device):
        parts = [part for _ in range(layers) for part in (Rounded(width, width, levels, find), nn.ReLU())]
        model = nn.Sequential(*parts).to(torch.bfloat16)
        batches = torch.randn(4, rows, width).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(i):
        training.train(model, optimizer, batches[i % len(batches)])

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
