# SPDX-License-Identifier: Apache-2.0
"""github.com/MIC-DKFZ/nnUNet/issues/239

The network for the full resolution trains slowly, the one for the low resolution does not; with the small data set the
speed even rises over time.

Cause: the files of the large set do not stay in the page cache, so the workers wait for the disk at each of many small
files, sample by sample.
Line: patches_fall_out_of_the_page_cache.py:read_file (in the workers)
Remedy: a set that stays in memory (`fixed` leaves the files in the page cache).

Needs a temporary folder on a real disk (TMPDIR names another one): in a folder kept in memory nothing has to be read.
"""
import os
import tempfile
import time

import numpy as np
import torch

import blind
import training


def write_files(folder, count, size):
    rng = np.random.default_rng(1)
    paths = [os.path.join(folder, f"patch{i:05}.raw") for i in range(count)]
    for path in paths:
        with open(path, "wb") as file:
            file.write(rng.bytes(size))
    for path in paths:  # only written pages can be dropped from the cache
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    return paths


def forget(file):
    """What a set larger than the memory does sooner or later: the pages of this file leave the cache."""
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_file(path, cold):
    with open(path, "rb", buffering=0) as file:
        if cold:
            forget(file)
        return file.read()


def milliseconds(paths, cold):
    begin = time.perf_counter()
    for path in paths:
        read_file(path, cold)
    return 1e3 * (time.perf_counter() - begin) / len(paths)


class Patches(torch.utils.data.Dataset):
    """One item is a whole batch: the patches of its samples lie in files of their own."""

    def __init__(self, paths, files, batches, rows, width, cold):
        self.paths, self.files, self.batches, self.rows, self.width = paths, files, batches, rows, width
        self.cold = cold

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        chosen = np.random.default_rng(index).integers(len(self.paths), size=self.files)
        raw = b"".join(read_file(self.paths[k], self.cold) for k in chosen)
        values = np.resize(np.frombuffer(raw, np.uint8), self.rows * self.width)
        return torch.from_numpy(values).view(self.rows, self.width)


def main():
    loop = blind.Loop("patches_fall_out_of_the_page_cache", "disk", steps=250)
    device = loop.device()
    rows, width = loop.size(2048, 4), loop.size(4096, 32)
    count, size, workers = loop.size(2048, 8), loop.size(65536, 64), loop.size(4, 1)
    model, optimizer = training.make_model(loop.size(36 if loop.variant == "healthy" else 16, 2), width, device)
    dtype, views = next(model.parameters()).dtype, loop.size(4, 2)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(folder, count, size)
        sample = paths[:: max(1, count // 256)]
        cold, warm = milliseconds(sample, True), milliseconds(sample, False)
        if cold < 2 * warm and not loop.small:
            raise SystemExit(f"{loop.name}: {folder} is read from memory; TMPDIR has to name a folder on a disk")
        # About 50 ms of reading for a batch, however quick the disk is.
        files = loop.size(int(min(1024, max(16, 50 * workers / cold))), 4)
        data = Patches(paths, files, loop.steps + loop.warm_up + 1, rows, width, loop.planted)
        loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers, prefetch_factor=2,
                                             pin_memory=device.type == "cuda")
        batches, gaps = iter(loader), training.GpuGaps(loop, device)

        def step(_):
            patches = next(batches)
            gaps.begin()
            x = (patches.to(device, non_blocking=True).to(dtype) / 255).repeat(views, 1)
            training.train(model, optimizer, x + 0.01 * torch.randn_like(x))
            gaps.finish()

        loop.run(step, blind.wait_for(device))
        del batches


if __name__ == "__main__":
    main()
