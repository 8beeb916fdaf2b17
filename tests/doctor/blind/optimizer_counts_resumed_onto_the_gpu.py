# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Lightning-AI/pytorch-lightning/issues/19955 (also pytorch/pytorch#128208)

A run that starts from nothing is fast. The same run resumed from its checkpoint keeps the GPU less busy, to the end,
although the data, the model and the settings are the same and the checkpoint is read only once.

Cause: the checkpoint was loaded onto the GPU, and with it the optimizer's count of steps of every parameter. Adam needs
these as Python numbers, so it copies each of them back twice in every step, and the GPU has nothing to do meanwhile.
Line: optimizer_counts_resumed_onto_the_gpu.py:update (its call of optimizer.step).
Remedy: the checkpoint is loaded onto the host. The optimizer moves what belongs to the GPU, and the counts stay.
Trap: what a resumed run does differently is to read a file and to skip batches, and neither takes time here.
"""
import os
import tempfile

import torch
from torch import nn

import blind
import training


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))


def resumed(model, optimizer, where):
    """Saves both and reads them again, as the next job of a chain would."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        state = torch.load(path, map_location=where)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def main():
    loop = blind.Loop("optimizer_counts_resumed_onto_the_gpu", "sync", steps=300)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width, layers = loop.size(8192, 8), loop.size(1024, 16), loop.size(96, 2)
    with torch.device(device):
        model = nn.Sequential(*(Block(width) for _ in range(layers))).to(torch.bfloat16)
        x = torch.randn(rows, width).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    span = training.GpuSpan(loop, device)

    def slopes():
        optimizer.zero_grad(set_to_none=True)
        model(x).float().square().mean().backward()

    def update():
        span.begin()
        optimizer.step()
        span.end()

    slopes()
    optimizer.step()
    span.due = span.queued(optimizer.step)  # its counts are on the host still
    resumed(model, optimizer, device if loop.planted else "cpu")

    def step(i):
        slopes()
        update()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
