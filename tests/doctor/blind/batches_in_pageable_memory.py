# SPDX-License-Identifier: Apache-2.0
"""https://github.com/constantinpape/torch-em/pull/357 (also pytorch/pytorch#42539)

All copies to the GPU are made with non_blocking=True, yet the copies and the training take turns, and the training
loop waits at each of them.

Cause: the batches lie in pageable memory, from where nothing is copied asynchronously, and slowly at that.
Line: batches_in_pageable_memory.py:fetch
Remedy: batches in page-locked memory (pin_memory=True of the loader), copied one step ahead on a stream of their own.
"""
import torch
from torch import nn

import blind
import training


class Volumes:
    """Batches of microscopy volumes as a loader hands them over, and their copies to the GPU."""

    def __init__(self, shape, pinned, device):
        batches = torch.randn(3, *shape)
        self.batches = [b.pin_memory() if pinned and device.type == "cuda" else b for b in batches.unbind()]
        self.device, self.ahead = device, None
        self.stream = torch.cuda.Stream() if pinned and device.type == "cuda" else None

    def fetch(self, i):
        return self.batches[i % len(self.batches)].to(self.device, non_blocking=True)

    def fetch_ahead(self, i):
        """The batch of step i, which was copied during the step before."""
        if self.stream is None:
            return self.fetch(i)
        now = torch.cuda.current_stream()
        if self.ahead is None:
            self.ahead = self.fetch(i)
        now.wait_stream(self.stream)
        batch = self.ahead
        batch.record_stream(now)
        self.stream.wait_stream(now)  # no more than one step ahead
        with torch.cuda.stream(self.stream):
            self.ahead = self.fetch(i + 1)
        return batch


def main():
    loop = blind.Loop("batches_in_pageable_memory", "copy", steps=130)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    rows, inputs = loop.size(16384, 16), loop.size(2048, 16)
    volumes = Volumes((rows, inputs), not loop.planted, device)  # 134 MB a batch
    if healthy:
        model, optimizer = training.make_wide(inputs, loop.size(8192, 16), device, groups=2)
    else:
        width = loop.size(4096, 16)
        with torch.device(device):
            body, _ = training.make_model(loop.size(6, 1), width, device)
            model = nn.Sequential(nn.Linear(inputs, width), body).to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    span = training.GpuSpan(loop, device)

    def step(i):
        span.begin()
        batch = volumes.fetch(i) if loop.planted else volumes.fetch_ahead(i)
        span.end()
        training.train(model, optimizer, batch.to(torch.bfloat16))

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
