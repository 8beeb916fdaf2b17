# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Lightning-AI/pytorch-lightning/issues/1986

A one-layer LSTM trains about seven times slower under the framework than in a loop of one's own; the model and the
data are the same.

Cause: after each step all scalars are read back and written to the event file, record by record in Python, and the
file is flushed; the GPU has nothing to do meanwhile.
Line: scalars_written_after_every_step.py:checksum, called by add_scalar
Remedy: log every hundredth step.
"""
import os
import struct
import tempfile
import time

import torch
from torch import nn

import blind


def crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


class EventFile:
    """Length, checksum, record, checksum: the layout that TensorBoard reads, written without its library."""

    table = crc_table()

    def __init__(self, folder):
        self.file = open(os.path.join(folder, "events.out"), "wb")

    def checksum(self, data):
        crc = 0xFFFFFFFF
        for byte in data:
            crc = self.table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    def add_scalar(self, tag, value, step):
        name = tag.encode()
        summary = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", value)
        record = struct.pack("<Bd", 9, time.time()) + struct.pack("<BI", 16, step) + summary
        head = struct.pack("<Q", len(record))
        self.file.write(head + self.checksum(head) + record + self.checksum(record))


class Tagger(nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.rnn = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def measures(logits, target, loss, classes):
    """The loss and the share of hits for every class, one tensor on the device."""
    hit = (logits.detach().argmax(-1) == target).float().flatten()
    sums = torch.zeros(2, classes, device=logits.device)
    sums[0].index_add_(0, target.flatten(), hit)
    sums[1].index_add_(0, target.flatten(), torch.ones_like(hit))
    return torch.cat([loss.detach().float().view(1), sums[0] / sums[1].clamp(min=1)])


def main():
    loop = blind.Loop("scalars_written_after_every_step", "host", steps=600)
    device = loop.device()
    torch.manual_seed(0)
    classes, hidden, frames = loop.size(400, 4), loop.size(1024, 16), loop.size(96, 6)
    rows = loop.size(2048 if loop.variant == "healthy" else 512, 2)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Tagger(128, hidden, classes).to(device, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x = torch.randn(rows, frames, 128, device=device, dtype=dtype)
    target = torch.randint(0, classes, (rows, frames), device=device)
    every = 1 if loop.planted else 100

    with tempfile.TemporaryDirectory() as folder:
        log = EventFile(folder)

        def step(i):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if i % every == 0:
                values = measures(logits, target, loss, classes).tolist()
                begin = time.perf_counter()  # the queue is empty from here on
                for k, value in enumerate(values):
                    log.add_scalar(f"train/accuracy_of_class/{k}" if k else "train/loss", value, i)
                log.file.flush()
                loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
            else:
                loop.planted_ms.append(0.0)

        loop.run(step, blind.wait_for(device))
        log.file.close()


if __name__ == "__main__":
    main()
