# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/3929

The optimizer takes far longer than forward and backward together when a model has very many small parameters; one flat
tensor with as many numbers in it is updated in next to no time.

Cause: Adam goes through the parameters one by one and launches about ten tiny kernels for each.
Line: adam_loops_over_small_tensors.py:step
Remedy: `fused=True`, one kernel for many tensors.
"""
import torch
from torch import nn

import blind


class FieldModel(nn.Module):
    """One small table for each of many fields, and a common network over them."""

    def __init__(self, fields, numbers, width, depth):
        super().__init__()
        self.fields = nn.ParameterList(nn.Parameter(0.1 * torch.randn(numbers)) for _ in range(fields))
        self.mix = nn.Linear(fields, width)
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.GELU()]
        self.body = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x):
        """x: (rows, numbers), what each row takes from the tables."""
        tables = torch.stack(list(self.fields))
        return self.body(self.mix(x @ tables.t()))


def make_optimizer(parameters, loop, device):
    if device.type != "cuda":  # fused needs a GPU in old versions
        return torch.optim.Adam(parameters, lr=1e-3, foreach=not loop.planted)
    if loop.planted:
        return torch.optim.Adam(parameters, lr=1e-3, foreach=False)
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


def main():
    loop = blind.Loop("adam_loops_over_small_tensors", "launch", steps=400)
    device = loop.device()
    torch.manual_seed(0)
    numbers, width = loop.size(3500, 20), loop.size(2048, 16)
    rows = loop.size(49152 if loop.variant == "healthy" else 16384, 16)
    model = FieldModel(loop.size(400, 10), numbers, width, loop.size(8, 2)).to(device, torch.bfloat16)
    optimizer = make_optimizer(model.parameters(), loop, device)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, numbers, generator=generator).to(device, torch.bfloat16)
    y = torch.randn(rows, 1, generator=generator).to(device)

    def step(i):
        loss = nn.functional.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
