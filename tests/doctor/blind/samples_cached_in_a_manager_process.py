# SPDX-License-Identifier: Apache-2.0
"""https://github.com/espnet/espnet/pull/1509 (with luizalabs/shared-memory-dict#10)

We cache the samples in a multiprocessing.Manager().dict(), so that all workers of the loader share it. I am not sure
that this is efficient. I expected shared memory, but it seems to make a socket and to send everything through it.

Cause: the cache lives in one more process. Each sample that a worker asks for is pickled there, sent through a socket
and unpickled, and all of the workers wait for this one process, in which one thread runs at a time.
Line: samples_cached_in_a_manager_process.py:__getitem__ (its look-up in the cache, in the loader's workers).
Remedy: the samples lie in one tensor in shared memory, which each worker reads for itself.
"""
import multiprocessing

import torch

import blind
import training


class Cached(torch.utils.data.Dataset):
    """Photographs that were decoded once; drawn in turn for as long as the training wants."""

    def __init__(self, cache, count):
        self.cache, self.files, self.count = cache, len(cache), count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return torch.as_tensor(self.cache[i % self.files])


def decoded(files, side):
    """Stands for the pictures of an epoch that lies behind."""
    return torch.rand(files, 3, side, side, generator=torch.Generator().manual_seed(0))


def patches(pictures, edge):
    """(pictures, 3, side, side) to one row for each square of edge x edge pixels."""
    count, colours, side, _ = pictures.shape
    cut = pictures.view(count, colours, side // edge, edge, side // edge, edge)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(-1, colours * edge * edge).to(torch.bfloat16)


def main():
    loop = blind.Loop("samples_cached_in_a_manager_process", "lock", steps=150)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    files, side, batch, edge = loop.size(256, 4), loop.size(256, 16), loop.size(64, 2), loop.size(16, 4)
    pictures = decoded(files, side)
    manager = None
    if loop.planted:
        manager = multiprocessing.Manager()
        cache = manager.dict()
        for i, picture in enumerate(pictures):
            cache[i] = picture.numpy()
    else:
        cache = pictures.share_memory_()
    data = Cached(cache, batch * (loop.warm_up + loop.steps))
    loader = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=loop.size(6, 1),
                                         pin_memory=device.type == "cuda")
    batches = iter(loader)
    model, optimizer = training.make_wide(3 * edge * edge, loop.size(4096, 16), device, groups=loop.size(2, 1))
    gaps = training.GpuGaps(loop, device)

    def step(i):
        taken = next(batches)
        gaps.begin()
        training.train(model, optimizer, patches(taken.to(device, non_blocking=True), edge))
        gaps.finish()

    loop.run(step, blind.wait_for(device))
    del batches  # the workers end before the process that they ask
    if manager:
        manager.shutdown()


if __name__ == "__main__":
    main()
