# SPDX-License-Identifier: Apache-2.0
"""https://github.com/mani-skill/ManiSkill/pull/1040 (also autonomousvision/LaRa#9)

Loading single images from the compressed HDF5 file is several times slower than loading them from separate files, and
the utilisation of the GPU is very low; with a worker for every core it is not much better.

Cause: the file is compressed in chunks of a trajectory, so the workers decompress 16 frames to read one of them.
Line: frames_inside_compressed_chunks.py:__getitem__ (in the workers)
Remedy: chunks of one frame.
"""
import os
import tempfile
import zlib

import numpy as np
import torch
from torch import nn

import blind
import training

PATCH = 16


def make_file(path, trajectories, frames, side, per_chunk):
    """Camera frames, smooth and with some noise, compressed per_chunk at a time; returns where the chunks lie."""
    rng, chunks = np.random.default_rng(0), [0]
    noise = rng.integers(0, 3, size=(frames, side, side, 3), dtype=np.uint8)
    with open(path, "wb") as file:
        for _ in range(trajectories):
            coarse = rng.integers(0, 240, size=(frames, side // 16, side // 16, 3), dtype=np.uint8)
            film = noise + coarse.repeat(16, axis=1).repeat(16, axis=2)
            for begin in range(0, frames, per_chunk):
                file.write(zlib.compress(film[begin:begin + per_chunk].tobytes(), 4))
                chunks.append(file.tell())
    return chunks


class Frames(torch.utils.data.Dataset):
    """Random frames of a file, of which each process has a handle of its own."""

    def __init__(self, path, chunks, per_chunk, side, samples):
        self.path, self.chunks, self.per_chunk, self.samples = path, chunks, per_chunk, samples
        self.shape, self.file = (side, side, 3), None

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if self.file is None:
            self.file = os.open(self.path, os.O_RDONLY)
        frame = index * 7919 % (self.per_chunk * (len(self.chunks) - 1))
        chunk, at = divmod(frame, self.per_chunk)
        begin, end = self.chunks[chunk:chunk + 2]
        data = zlib.decompress(os.pread(self.file, end - begin, begin))
        size = int(np.prod(self.shape))
        return torch.from_numpy(np.frombuffer(data, np.uint8, size, at * size).reshape(self.shape).copy())


class PatchNetwork(nn.Module):
    """A row for each patch of 16 x 16 pixels."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, images):
        batch, side = images.shape[0], images.shape[1] // PATCH
        x = images.view(batch, side, PATCH, side, PATCH, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 3 * PATCH * PATCH)
        return self.body(x.to(torch.bfloat16) / 128 - 1)


def main():
    loop = blind.Loop("frames_inside_compressed_chunks", "input", steps=220)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    batch, side, frames = loop.size(192 if healthy else 64, 2), loop.size(128, 32), loop.size(16, 4)
    if healthy:
        loop.steps = min(loop.steps, 160)
        body, _ = training.make_wide(3 * PATCH * PATCH, loop.size(8192, 16), device, groups=2)
    else:
        width = loop.size(4096, 16)
        with torch.device(device):
            rest, _ = training.make_model(loop.size(28, 1), width, device)
            body = nn.Sequential(nn.Linear(3 * PATCH * PATCH, width), nn.ReLU(), rest)
    model = PatchNetwork(body.to(device, torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps = training.GpuGaps(loop, device)

    with tempfile.TemporaryDirectory() as folder:
        path, per_chunk = os.path.join(folder, "demonstrations"), frames if loop.planted else 1
        chunks = make_file(path, loop.size(60, 2), frames, side, per_chunk)
        data = Frames(path, chunks, per_chunk, side, (loop.steps + loop.warm_up + 1) * batch)
        loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(8, 1),
                                             pin_memory=device.type == "cuda", prefetch_factor=4)
        batches = iter(loader)

        def step(i):
            images = next(batches)
            gaps.begin()
            training.train(model, optimizer, images.to(device, non_blocking=True))
            gaps.finish()

        loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
