# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/50584 (also #23475)

I have to compute the derivatives of every output of a network at every training step. Is there a faster way than a
loop over the outputs? The loop is just not fast enough for this purpose.

Cause: each row of the Jacobian is a backward pass of its own through a small network, some twenty tiny kernels that
take longer to launch than to run.
Line: jacobian_taken_row_by_row.py:rows_one_by_one
Remedy: one backward pass for all rows at once (is_grads_batched=True, what `vectorize` of the jacobian does).
"""
import torch
from torch import nn

import blind
import training


def make_emulator(inputs, width, outputs, layers, device):
    """A small network, trained before, that stands for a simulator."""
    sides = [inputs] + [width] * layers
    parts = [part for a, b in zip(sides, sides[1:]) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*parts, nn.Linear(width, outputs)).to(device).requires_grad_(False)


def rows_one_by_one(emulator, x):
    x = x.detach().requires_grad_(True)
    sums = emulator(x).sum(dim=0)
    return torch.stack([torch.autograd.grad(sums[k], x, retain_graph=True)[0] for k in range(sums.shape[0])])


def rows_at_once(emulator, x):
    x = x.detach().requires_grad_(True)
    sums = emulator(x).sum(dim=0)
    return torch.autograd.grad(sums, x, torch.eye(len(sums), device=x.device), is_grads_batched=True)[0]


def main():
    loop = blind.Loop("jacobian_taken_row_by_row", "launch", steps=400)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    points, inputs, outputs = loop.size(256, 4), loop.size(16, 3), loop.size(96, 5)
    emulator = make_emulator(inputs, loop.size(256, 8), outputs, loop.size(5, 2), device)
    rows_of = rows_one_by_one if loop.planted else rows_at_once
    width = loop.size(4096, 16)
    model, optimizer = training.make_model(loop.size(20, 2), width, device)
    dtype = next(model.parameters()).dtype
    if healthy:
        loop.steps = min(loop.steps, 130)
    spread = loop.size(48 if healthy else 6, 1)  # samples around each point
    x = torch.randn(4, points, inputs, device=device)
    noise = torch.randn(points * spread, width, device=device).to(dtype)
    lift = torch.randn(inputs, width, device=device).to(dtype)

    def step(i):
        """The network is trained where the emulator is sure: the less its outputs change with the inputs, the more."""
        at = x[i % len(x)]
        certain = 1.0 / (1.0 + rows_of(emulator, at).square().sum(dim=(0, 2)))
        found = model((at.to(dtype) @ lift).repeat(spread, 1) + noise).float()
        loss = (found.square().mean(dim=1) * certain.repeat(spread)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
