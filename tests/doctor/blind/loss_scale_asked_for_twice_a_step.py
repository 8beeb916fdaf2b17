# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/accelerate/issues/1714

With half precision through the training library the host and the GPU wait for one another in every step, which they
did not when the same gradient scaler was used by hand.

Cause: to learn whether a step was left out, the library reads the loss scale before and after it; both are on the GPU.
Line: loss_scale_asked_for_twice_a_step.py:optimizer_step
Remedy: the scale is read after every hundred steps; the fused optimizer leaves steps out by itself.
"""
import random

import numpy as np
import torch
from torch import nn

import blind
import training


class Skipped:
    """Counts the steps that the scaler left out, as a training library does it."""

    def __init__(self, scaler, asks):
        self.scaler, self.asks, self.count = scaler, asks, 0

    def optimizer_step(self, optimizer):
        before = self.scaler.get_scale() if self.asks else 0.0
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.asks:
            self.count += self.scaler.get_scale() < before


def make_records(count, most, fields):
    """Sensor readings as a file of lines gives them: lists of lists, each record of its own length."""
    rng = random.Random(0)
    return [[[rng.random() for _ in range(fields)] for _ in range(rng.randint(most // 2, most))] for _ in range(count)]


def collate(records, most):
    padding = [0.0] * len(records[0][0])
    return np.array([r + [padding] * (most - len(r)) for r in records], dtype=np.float32)


def main():
    loop = blind.Loop("loss_scale_asked_for_twice_a_step", "sync", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, most, fields, width = loop.size(64, 2), loop.size(256, 8), 4, loop.size(2048, 16)
    records = make_records(4 * batch, most, fields)
    with torch.device(device):
        layers = [nn.Linear(fields, width), nn.ReLU()]
        for _ in range(loop.size(16, 2)):
            layers += [nn.Linear(width, width), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(width, fields))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    scaler = torch.amp.GradScaler(device.type)
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    skipped = Skipped(scaler, False)

    def work(i):
        part = i % 4 * batch
        x = torch.from_numpy(collate(records[part:part + batch], most))
        x = (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=half):
            loss = nn.functional.mse_loss(model(x).float(), x)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        skipped.optimizer_step(optimizer)

    span = training.GpuSpan(loop, device)
    blind.take_gpu()
    span.due = span.queued(lambda: work(0))
    skipped.asks = loop.planted

    def step(i):
        span.begin()
        work(i)
        span.end()
        if not loop.planted and i % 100 == 99:
            scaler.get_scale()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
