# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/29804 (also meta-pytorch/data#668, webdataset/webdataset#392)

Recordings are streamed through an iterable data set. I went from one worker to eight, and they are all busy, yet
batches come no faster than from one; with a data set that is indexed, workers do help.

Cause: each worker goes through the whole stream, decodes every record and then passes over those that are not its own,
seven of eight.
Line: every_worker_decodes_the_whole_stream.py:__iter__ (in the workers; its calls of decode)
Remedy: the share of a worker is taken from the packed records, before they are decoded.
Trap: still more workers, the first thing that is recommended, decode everything still more often.
"""
import itertools
import os
import struct
import tempfile
import zlib

import numpy as np
import torch
from torch import nn

import blind
import training


def write_records(path, records, values):
    """Packed recordings of low volume, each after its length."""
    rng = np.random.default_rng(0)
    with open(path, "wb") as file:
        for _ in range(records):
            packed = zlib.compress(rng.normal(0, 12, size=values).astype(np.int16).tobytes(), 1)
            file.write(struct.pack("<I", len(packed)) + packed)


def packed_records(path):
    """The records of the file, again and again."""
    while True:
        with open(path, "rb") as file:
            while head := file.read(4):
                yield file.read(struct.unpack("<I", head)[0])


def decode(packed):
    wave = np.frombuffer(zlib.decompress(packed), dtype=np.int16).astype(np.float32)
    return torch.from_numpy((wave - wave.mean()) / wave.std())


class Stream(torch.utils.data.IterableDataset):
    """The recordings of a file; each is given out by one worker."""

    def __init__(self, path, share_first):
        self.path, self.share_first = path, share_first

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        records = packed_records(self.path)
        if self.share_first:
            for packed in itertools.islice(records, info.id, None, info.num_workers):
                yield decode(packed)
        else:
            waves = (decode(packed) for packed in records)
            yield from itertools.islice(waves, info.id, None, info.num_workers)


def main():
    loop = blind.Loop("every_worker_decodes_the_whole_stream", "input")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, window, windows, width = loop.size(16, 2), loop.size(256, 4), loop.size(512, 4), loop.size(4096, 16)
    with torch.device(device):
        body, _ = training.make_model(loop.size(7, 1), width, device)
        model = nn.Sequential(nn.Linear(window, width), body).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps = training.GpuGaps(loop, device)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "records.bin")
        write_records(path, loop.size(192, 8), window * windows)
        loader = torch.utils.data.DataLoader(Stream(path, not loop.planted), batch_size=batch,
                                             num_workers=loop.size(8, 2), pin_memory=device.type == "cuda")
        batches = iter(loader)

        def step(i):
            waves = next(batches)
            gaps.begin()
            training.train(model, optimizer, waves.to(device, non_blocking=True).view(-1, window).to(torch.bfloat16))
            gaps.finish()

        loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
