# SPDX-License-Identifier: Apache-2.0
"""github.com/dmlc/dgl PR#2716

Small graph model, yet an epoch is slow; feeding each batch its node numbers costs more than the network.

Cause: each step makes a device tensor of a Python list of numbers, one number at a time, while the GPU waits
Line: node_ids_list_becomes_tensor_each_step.py:take_ids
Remedy: keep all numbers in one tensor on the GPU and slice it
"""
import random

import torch

import blind
import training


class Batches:
    """Consecutive parts of a shuffled list of node numbers."""

    def __init__(self, nodes, batch, device, as_tensor):
        self.batch, self.device = batch, device
        self.ids = list(range(nodes))
        random.Random(8).shuffle(self.ids)
        self.tensor = torch.tensor(self.ids, device=device) if as_tensor else None

    def take_ids(self, i):
        begin = i * self.batch % (len(self.ids) - self.batch + 1)
        if self.tensor is not None:
            return self.tensor[begin:begin + self.batch]
        return torch.tensor(self.ids[begin:begin + self.batch], device=self.device)


def main():
    loop = blind.Loop("node_ids_list_becomes_tensor_each_step", "host", steps=300)
    device = loop.device()
    nodes, batch, width = loop.size(4_000_000, 4000), loop.size(131072, 64), loop.size(64, 8)
    hidden, per_row = loop.size(4096, 32), loop.size(64, 4)
    layers = loop.size(96 if loop.variant == "healthy" else 32, 2)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    table = torch.randn(nodes, width, device=device, dtype=dtype)
    parts = [torch.nn.Linear(width * per_row, hidden), torch.nn.ReLU()]
    for _ in range(layers):
        parts += [torch.nn.Linear(hidden, hidden), torch.nn.ReLU()]
    model = torch.nn.Sequential(*parts).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches, gaps = Batches(nodes, batch, device, as_tensor=not loop.planted), training.GpuGaps(loop, device)

    def step(i):
        if not loop.planted:
            gaps.begin()
        ids = batches.take_ids(i)
        if loop.planted:
            gaps.begin()
        x = table[ids].view(-1, width * per_row)
        loss = model(x).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
