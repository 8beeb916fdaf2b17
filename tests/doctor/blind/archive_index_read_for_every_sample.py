# SPDX-License-Identifier: Apache-2.0
"""https://github.com/zarr-developers/zarr-python/issues/66 (also pytorch/vision#950)

Reading from the archive is spectacularly slow: what takes 15 ms from a folder of files takes 17 seconds from one file
that holds them all.

Cause: each sample opens the archive anew, and opening it reads and parses the entries of all its members in Python.
Line: archive_index_read_for_every_sample.py:__getitem__ (in the workers)
Remedy: each worker opens the archive once and keeps it open.
"""
import os
import tempfile
import zipfile

import numpy as np
import torch
from torch import nn

import blind
import training

PATCH = 16


def make_archive(path, members, side):
    """Smooth images with some noise, stored as they are; returns their names."""
    rng = np.random.default_rng(5)
    noise = rng.integers(0, 4, size=(side, side, 3), dtype=np.uint8)
    names = [f"train/scene_{k // 100:04d}/image_{k:06d}.raw" for k in range(members)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            coarse = rng.integers(0, 250, size=(side // 16, side // 16, 3), dtype=np.uint8)
            archive.writestr(name, (noise + coarse.repeat(16, axis=0).repeat(16, axis=1)).tobytes())
    return names


class Archived(torch.utils.data.Dataset):
    """Images out of the archive; `keep` leaves it open in each worker."""

    def __init__(self, path, names, side, samples, keep):
        self.path, self.names, self.samples, self.keep = path, names, samples, keep
        self.shape, self.archive = (side, side, 3), None

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        name = self.names[index * 7919 % len(self.names)]
        if self.keep:
            if self.archive is None:
                self.archive = zipfile.ZipFile(self.path)
            data = self.archive.read(name)
        else:
            with zipfile.ZipFile(self.path) as archive:
                data = archive.read(name)
        return torch.from_numpy(np.frombuffer(data, np.uint8).reshape(self.shape).copy())


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
    loop = blind.Loop("archive_index_read_for_every_sample", "input", steps=200)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    batch, side = loop.size(192 if healthy else 32, 2), loop.size(128, 32)
    if healthy:
        loop.steps = min(loop.steps, 140)
        body, _ = training.make_wide(3 * PATCH * PATCH, loop.size(8192, 16), device, groups=2)
    else:
        width = loop.size(4096, 16)
        rest, _ = training.make_model(loop.size(24, 1), width, device)
        body = nn.Sequential(nn.Linear(3 * PATCH * PATCH, width), nn.ReLU(), rest)
    model = PatchNetwork(body).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps = training.GpuGaps(loop, device)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.zip")
        names = make_archive(path, loop.size(900, 20), side)
        data = Archived(path, names, side, (loop.steps + loop.warm_up + 1) * batch, not loop.planted)
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
