# SPDX-License-Identifier: Apache-2.0
"""https://github.com/mlflow/mlflow/issues/4299 (also mlflow/mlflow#3010, Lightning-AI/pytorch-lightning#3393)

Logging seriously slows down my training loop when I log the losses of each batch. The call takes a whole batch of
metrics, but goes through them and opens the database anew for each.

Cause: each metric is a connection, a transaction and a commit of its own, which waits until the disk has it; there is
one for each of many classes in every step, and the GPU has nothing to do meanwhile.
Line: metrics_committed_one_by_one.py:log_metric
Remedy: the metrics of a hundred steps are read at once and written in one transaction.
"""
import contextlib
import os
import sqlite3
import tempfile
import time

import torch
from torch import nn

import blind
import training

INSERT = "insert into metrics values (?, ?, ?, ?)"


class Store:
    def __init__(self, folder):
        self.path = os.path.join(folder, "runs.db")
        with contextlib.closing(sqlite3.connect(self.path)) as base, base:
            base.execute("create table metrics (name text, step integer, value real, time real)")

    def log_metric(self, name, step, value):
        with contextlib.closing(sqlite3.connect(self.path)) as base, base:
            base.execute(INSERT, (name, step, value, time.time()))

    def log_batch(self, metrics):
        with contextlib.closing(sqlite3.connect(self.path)) as base, base:
            base.executemany(INSERT, [(name, step, value, time.time()) for name, step, value in metrics])


def as_many_as_take(ms, most):
    """How many metrics this disk takes in about so many milliseconds, a power of two from 2 to `most`."""
    with tempfile.TemporaryDirectory() as folder:
        store, took = Store(folder), []
        for k in range(30):
            begin = time.perf_counter()
            store.log_metric("trial", k, 0.0)
            took.append(1e3 * (time.perf_counter() - begin))
    count = 2
    while 1.4 * count * sorted(took)[len(took) // 2] < ms and count < most:
        count *= 2
    return count


def main():
    loop = blind.Loop("metrics_committed_one_by_one", "disk", steps=260)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width, depth = loop.size(8192, 8), loop.size(4096, 16), loop.size(11, 1)
    count = as_many_as_take(loop.size(10, 1), loop.size(64, 4)) if loop.planted else 16
    names = [f"train/share_of_class/{k}" if k else "train/loss" for k in range(count)]
    with torch.device(device):
        body, _ = training.make_model(depth, width, device)
        model = nn.Sequential(body, nn.Linear(width, 64)).to(torch.bfloat16)
        x = torch.randn(rows, width).to(torch.bfloat16)
        labels = torch.randint(0, 64, (rows,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps, kept = training.GpuGaps(loop, device), []

    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)

        def step(i):
            gaps.begin()
            logits = model(x).float()
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            shares = (logits.detach() > 0).float().mean(dim=0)[:count - 1]
            values = torch.cat([loss.detach().view(1), shares])
            gaps.finish()
            if loop.planted:
                for name, value in zip(names, values.tolist()):
                    store.log_metric(name, i, value)
                return
            kept.append(values)
            if i % 100 == 99:
                rows_read = enumerate(torch.stack(kept).tolist(), i + 1 - len(kept))
                store.log_batch([(name, at, v) for at, row in rows_read for name, v in zip(names, row)])
                kept.clear()

        loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
