# SPDX-License-Identifier: Apache-2.0
"""github.com/BerkeleyAutomation/gqcnn PR#45

The queue of prepared batches is nearly always empty and the GPU starves, although a thread of its own fills it.

Cause: the prefetch thread parses records in pure Python; it and the training loop take turns at the interpreter lock
Line: prefetch_thread_parses_under_the_lock.py:parse (in the prefetch thread)
Remedy: the same prefetch in a process, batches passed through shared memory
"""
import queue
import random
import threading

import torch
import torch.multiprocessing

import blind


def make_records(count, numbers):
    rng = random.Random(10)
    return [";".join(f"{rng.uniform(-1, 1):.5f}" for _ in range(numbers)) for _ in range(count)]


def parse(record):
    """One grasp of the text format: numbers between semicolons, bounded."""
    row = []
    for field in record.split(";"):
        value = float(field)
        if value > 0.99:
            value = 0.99
        row.append(value)
    return row


def fill(batches, stop, records, batch):
    """Parses batch after batch into the queue until told to stop."""
    torch.set_num_threads(1)
    begin = 0
    while not stop.is_set():
        rows = [parse(records[(begin + k) % len(records)]) for k in range(batch)]
        begin += batch
        ready = torch.tensor(rows)
        while not stop.is_set():
            try:
                batches.put(ready, timeout=0.2)
                break
            except queue.Full:
                pass


class Residual(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.1 * torch.relu(layer(x))
        return x


def main():
    loop = blind.Loop("prefetch_thread_parses_under_the_lock", "lock", steps=600)
    device = loop.device()
    batch, width = loop.size(16, 2), loop.size(2048, 16)
    layers = loop.size(40, 2)
    views = loop.size(768 if loop.variant == "healthy" else 192, 2)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    records = make_records(loop.size(256, 8), width)
    kind = torch.multiprocessing.get_context("fork")
    if loop.planted:
        batches, stop, start = queue.Queue(4), threading.Event(), threading.Thread
    else:
        batches, stop, start = kind.Queue(4), kind.Event(), kind.Process
    filler = start(target=fill, args=(batches, stop, records, batch), daemon=True)
    filler.start()
    model = Residual(width, layers).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(_):
        x = batches.get().to(device).to(dtype).repeat(views, 1)
        loss = model(x + 0.01 * torch.randn_like(x)).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))
    stop.set()
    filler.join()


if __name__ == "__main__":
    main()
