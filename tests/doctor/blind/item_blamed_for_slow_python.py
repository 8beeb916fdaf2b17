# SPDX-License-Identifier: Apache-2.0
"""https://github.com/lnccbrown/LANfactory/pull/120

A small network is trained on large batches, the GPU is idle most of the time, and reading the loss as a float in every
step is taken for the reason; the author hoped to win most of the step back by removing that read.

Cause: a Python loop builds the rows of each batch; the GPU needs a small part of the step.
Line: item_blamed_for_slow_python.py:rows_in_python
Remedy: build the rows with a few NumPy operations on whole columns.
Trap: removing `loss.item()` brings next to nothing: there is almost no GPU work that could run beside the Python loop.
"""
import time

import numpy as np
import torch
from torch import nn

import blind


def rows_in_python(drift, bound, start, reaction):
    rows = []
    for a, b, c, t in zip(drift.tolist(), bound.tolist(), start.tolist(), reaction.tolist()):
        rows.append((a, b, c, t, a * t, b * c))
    return np.array(rows, dtype=np.float32)


def rows_in_numpy(drift, bound, start, reaction):
    columns = (drift, bound, start, reaction, drift * reaction, bound * start)
    return np.stack(columns, axis=1).astype(np.float32)


def main():
    loop = blind.Loop("item_blamed_for_slow_python", "host", steps=400)
    device = loop.device()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    healthy = loop.variant == "healthy"
    rows = loop.size(20000, 200)
    width = loop.size(4096 if healthy else 128, 16)
    layers = [nn.Linear(6, width), nn.Tanh()]
    for _ in range(loop.size(12 if healthy else 2, 2)):
        layers += [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    columns = [rng.random((8, rows)) for _ in range(4)]
    build = rows_in_python if loop.planted else rows_in_numpy
    target = torch.rand(rows, 1, device=device)
    history = []

    def step(i):
        begin = time.perf_counter()
        batch = build(*(column[i % 8] for column in columns))
        if loop.planted:  # the loss of the last step has been read: the GPU waits for the rows
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
        x = torch.from_numpy(batch).to(device).to(torch.bfloat16)
        loss = nn.functional.mse_loss(model(x).float(), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        history.append(loss.item())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
