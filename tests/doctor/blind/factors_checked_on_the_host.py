# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/pull/56724 (asked for in pytorch/pytorch#47608)

A Cholesky factorisation that must raise an error when it fails makes my small problems slow on the GPU, although the
factorisation itself takes next to no time there.

Cause: each of the 64 factorisations of a step copies its error code to the host and waits for it, so that it can raise
an error; the host never gets ahead, and the GPU runs dry while the host launches the small kernels in between.
Line: factors_checked_on_the_host.py:whiten, its call of torch.linalg.cholesky
Remedy: torch.linalg.cholesky_ex, which leaves the error codes on the GPU.
"""
import torch
from torch import nn

import blind
import training


class GroupWhitening(nn.Module):
    """Takes mean and correlation out of each group of columns; keeps running statistics for later use."""

    def __init__(self, groups, width, checked):
        super().__init__()
        self.width, self.checked = width, checked
        self.register_buffer("means", torch.zeros(groups, width))
        self.register_buffer("spreads", torch.eye(width).repeat(groups, 1, 1))
        self.register_buffer("unit", torch.eye(width))

    def whiten(self, x, mean, spread):
        found = x.mean(dim=0)
        x = x - found
        covariance = x.T @ x / len(x) + 1e-2 * self.unit
        mean.lerp_(found, 0.1)
        spread.lerp_(covariance, 0.1)
        factor = torch.linalg.cholesky(covariance) if self.checked else torch.linalg.cholesky_ex(covariance).L
        inverse = torch.linalg.solve_triangular(factor, self.unit, upper=False)
        return x @ inverse.T

    @torch.no_grad()
    def forward(self, x):
        groups = x.split(self.width, dim=1)
        return torch.cat([self.whiten(*each) for each in zip(groups, self.means, self.spreads)], dim=1)


def main():
    loop = blind.Loop("factors_checked_on_the_host", "sync", steps=500)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
        return training.run_full_steps(loop, device)
    groups, width, rows = loop.size(64, 3), loop.size(64, 8), loop.size(4096, 64)
    whitening = GroupWhitening(groups, width, loop.planted).to(device)
    model, optimizer = training.make_wide(groups * width, loop.size(4096, 16), device, groups=loop.size(3, 1))
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(4, rows, groups * width, generator=generator).to(device)

    def step(i):
        training.train(model, optimizer, whitening(data[i % 4]).bfloat16())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
