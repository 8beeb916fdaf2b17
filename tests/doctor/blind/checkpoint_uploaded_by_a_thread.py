# SPDX-License-Identifier: Apache-2.0
"""https://github.com/InternLM/InternEvo/pull/65 (the same in another library: pytorch/pytorch#147039)

Checkpoints are uploaded to an object store in the background. While an upload lasts, dozens of steps go at half the
speed, 70 instead of 148; with processes in place of threads hardly one step is affected.

Cause: the uploading thread computes a checksum of each part in Python, as the store's library does where its compiled
extension is missing. It holds the interpreter meanwhile, so the training loop cannot launch.
Line: checkpoint_uploaded_by_a_thread.py:checksum (called by upload, in the thread of the pool).
Remedy: the pool that uploads is one of processes.
Trap: the upload is asynchronous, and it mostly waits for the network.
"""
import concurrent.futures
import multiprocessing
import os
import tempfile
import time

import torch
from torch import nn

import blind
import training


def table_of(polynomial):
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    return table


TABLE = table_of(0xC96C5795D7870F42)


def checksum(part, crc=0):
    """The 64-bit checksum that the object store asks for."""
    crc ^= 0xFFFFFFFFFFFFFFFF
    for byte in part:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFFFFFFFFFF


def upload(bucket, name, content, size, pause):
    """Sends the parts of a checkpoint one by one, here to a folder over a slow line, then their checksum."""
    crc = 0
    with open(os.path.join(bucket, name), "wb") as file:
        for at in range(0, len(content), size):
            part = content[at:at + size]
            crc = checksum(part, crc)
            file.write(part)
            time.sleep(pause)
    return crc


class Uploads:
    """Uploads the state of a model every now and then, if the last upload is over."""

    def __init__(self, pool, bucket, model, every, size):
        self.pool, self.bucket, self.model, self.every, self.size, self.latest = pool, bucket, model, every, size, None

    def after(self, i):
        if i % self.every or self.latest and not self.latest.done():
            return
        largest = max(self.model.parameters(), key=torch.numel)
        content = largest.detach().flatten().view(torch.uint8)[:self.size * 48].cpu().numpy().tobytes()
        self.latest = self.pool.submit(upload, self.bucket, f"{i % 2}.part", content, self.size, 0.012)


class Branches(nn.Module):
    """Many small networks side by side, whose answers are added up."""

    def __init__(self, count, inputs, hidden):
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden),
                                                 nn.SiLU(), nn.Linear(hidden, 1)) for _ in range(count))

    def forward(self, x):
        return sum(part(x) for part in self.parts)


def main():
    loop = blind.Loop("checkpoint_uploaded_by_a_thread", "lock", steps=350)
    pool = concurrent.futures.ThreadPoolExecutor(1)
    if not loop.planted:
        pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        pool.submit(checksum, b"").result()  # its process starts before the GPU is first used
    device = loop.device()
    if loop.variant == "healthy":
        pool.shutdown()
        loop.steps = min(loop.steps, 200)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows, inputs = loop.size(8192, 8), loop.size(256, 4)
    model = Branches(loop.size(32, 3), inputs, loop.size(1280, 8)).to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    x = torch.randn(rows, inputs, device=device, dtype=dtype)
    y = torch.randn(rows, 1, device=device, dtype=dtype)
    with tempfile.TemporaryDirectory() as bucket:
        uploads = Uploads(pool, bucket, model, every=20, size=loop.size(65536, 64))

        def step(i):
            loss = (model(x) - y).float().square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            uploads.after(i)

        loop.run(step, blind.wait_for(device))
        pool.shutdown()


if __name__ == "__main__":
    main()
