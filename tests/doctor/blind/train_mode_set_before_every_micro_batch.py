# SPDX-License-Identifier: Apache-2.0
"""https://github.com/unslothai/unsloth/pull/10744 (also pytorch/ignite#2010, pytorch/pytorch#171319)

Fine-tuning adapters keeps the GPU busy for a third of each step; the rest is the processor's. The trainer switches the
model to training mode at every micro-batch, which it has been in since the beginning.

Cause: model.train() walks through all modules and sets an attribute of each, 4000 of them with the adapters of many
tasks, before the forward pass of a micro-batch is launched.
Line: train_mode_set_before_every_micro_batch.py:training_step
Remedy: training mode is set once, before the first step.
"""
import torch
from torch import nn

import blind
import training


class Adapted(nn.Module):
    """A frozen layer with a pair of small trained products for each of many tasks, one of which is active."""

    def __init__(self, width, rank, tasks):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down = nn.ModuleDict({task: nn.Linear(width, rank, bias=False) for task in tasks})
        self.up = nn.ModuleDict({task: nn.Linear(rank, width, bias=False) for task in tasks})
        self.dropout = nn.ModuleDict({task: nn.Identity() for task in tasks})
        self.active = tasks[0]

    def forward(self, x):
        low = self.down[self.active](self.dropout[self.active](x))
        return x + nn.functional.silu(self.base(x) + self.up[self.active](low))


def main():
    loop = blind.Loop("train_mode_set_before_every_micro_batch", "host", steps=120)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    width, rank, layers = loop.size(4096, 16), loop.size(16, 2), loop.size(32, 2)
    rows, micro_batches = loop.size(8192 if healthy else 2048, 8), 2
    tasks = [f"task_{k}" for k in range(loop.size(40, 3))]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = nn.Sequential(*(Adapted(width, rank, tasks) for _ in range(layers))).to(dtype)
        x = torch.randn(4, rows, width).to(dtype)
    trained = [p for layer in model for part in (layer.down, layer.up) for p in part[layer.active].parameters()]
    optimizer = torch.optim.SGD(trained, lr=1e-4)
    gaps = training.GpuGaps(loop, device)
    model.train()

    def training_step(inputs):
        if loop.planted:
            model.train()
        gaps.begin()
        loss = model(inputs).float().square().mean() / micro_batches
        loss.backward()

    def step(i):
        for k in range(micro_batches):
            training_step(x[(micro_batches * i + k) % len(x)])
            if k == micro_batches - 1:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
