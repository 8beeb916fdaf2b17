# SPDX-License-Identifier: Apache-2.0
"""https://github.com/HuguesTHOMAS/KPConv-PyTorch/issues/22

Is the synchronisation in the trainer necessary? Without it an epoch of the point-cloud network takes a quarter less
time, and nothing else seems to change.

Cause: to fill a table of how long each part of a step takes, the trainer waits for the GPU after each of four parts,
so the next clouds are thinned out on the host while the GPU has nothing to do.
Line: timers_that_synchronise.py:tick
Remedy: no synchronisation in the timer.
"""
import collections
import time

import numpy as np
import torch
from torch import nn

import blind
import training


class Timer:
    """Milliseconds of each part of a step, exponentially smoothed."""

    def __init__(self, wait):
        self.wait, self.means, self.last = wait, collections.defaultdict(float), time.perf_counter()

    def tick(self, part):
        if self.wait:
            self.wait()
        now = time.perf_counter()
        self.means[part] += 0.05 * (1e3 * (now - self.last) - self.means[part])
        self.last = now


def thinned_out(cloud, cell, points):
    """One point of each cell of a grid, `points` in all."""
    keys = (cloud / cell).astype(np.int64) @ np.array([1, 1 << 20, 1 << 40])
    kept = cloud[np.unique(keys, return_index=True)[1]]
    return np.resize(kept, (points, 3)).astype(np.float32)


def main():
    loop = blind.Loop("timers_that_synchronise", "sync", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    points, width = loop.size(8192, 32), loop.size(2048, 16)
    clouds = rng.random((8, loop.size(40000, 100), 3))
    with torch.device(device):
        layers = [nn.Linear(3, width), nn.ReLU()]
        for _ in range(loop.size(28, 2)):
            layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(width, 16)).to(torch.bfloat16)
        labels = torch.randint(0, 16, (points,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    timer = Timer(None)

    def work(i):
        cloud = torch.from_numpy(thinned_out(clouds[i % 8], 0.04, points))
        cloud = cloud.pin_memory() if device.type == "cuda" else cloud
        x = cloud.to(device, non_blocking=True).to(torch.bfloat16)
        timer.tick("points")
        loss = nn.functional.cross_entropy(model(x).float(), labels)
        timer.tick("forward")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        timer.tick("backward")
        optimizer.step()
        timer.tick("optimizer")

    span = training.GpuSpan(loop, device)
    blind.take_gpu()
    span.due = span.queued(lambda: work(0))
    timer.wait = blind.wait_for(device) if loop.planted else None

    def step(i):
        span.begin()
        work(i)
        span.end()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
