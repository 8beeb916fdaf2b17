# SPDX-License-Identifier: Apache-2.0
"""https://github.com/lightly-ai/lightly-train/pull/749

The progress bar books more than half of each step as waiting for data, although the loader is light and the GPU is hot.

Cause: none. The step is bound by the GPU; the timer of the step stops before the GPU has finished, and the copy of the
next batch, which waits for the queue, is booked as loading.
Line: timer_says_waiting_for_data.py:next_batch
Remedy: there is none to find; `fixed` does the obvious thing, page-locked batches copied without blocking.
Trap: that brings about nothing: the copy takes well under a millisecond, the rest of the wait is the GPU's own work.
"""
import time

import numpy as np
import torch
from torch import nn

import blind


def conv_block(channels):
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())


def main():
    loop = blind.Loop("timer_says_waiting_for_data", "none", steps=250)
    device = loop.device()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    batch, side, channels = loop.size(256, 4), loop.size(32, 8), loop.size(256, 8)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), *(conv_block(channels) for _ in range(loop.size(12, 2))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 128))
    model = model.to(device, torch.bfloat16).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.from_numpy(rng.integers(0, 255, size=(8, batch, 3, side, side), dtype=np.uint8))
    if loop.variant == "fixed" and device.type == "cuda":
        images = images.pin_memory()
    elif loop.variant == "healthy":
        images = images.to(device)
    seconds = {"data": 0.0, "step": 0.0}  # what the progress bar shows

    def next_batch(i):
        return images[i % 8].to(device, non_blocking=loop.variant == "fixed")

    def train(x):
        x = (x.to(torch.bfloat16) / 255).contiguous(memory_format=torch.channels_last)
        z = nn.functional.normalize(model(x).float(), dim=1)
        loss = nn.functional.cross_entropy(z @ z.t() / 0.2, torch.arange(batch, device=device).roll(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def step(i):
        begin = time.perf_counter()
        x = next_batch(i)
        loaded = time.perf_counter()
        train(x)
        seconds["data"] += loaded - begin
        seconds["step"] += time.perf_counter() - loaded

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
