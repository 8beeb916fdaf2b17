# SPDX-License-Identifier: Apache-2.0
"""github.com/transferable-samplers/transferable-samplers PR#12

Training is far slower than the size of the model gives reason to expect, all cores are busy, and fewer loader workers
make it faster.

Cause: the data set multiplies matrices, and the products of each of the twelve workers run on as many threads as the
machine has cores, so that a hundred and more threads fight for sixteen cores.
Line: matrix_products_in_every_worker.py:random_rotation (in the workers)
Remedy: one thread for each worker.
"""
import numpy as np
import torch

import blind
import training


def random_rotation(rng, size):
    """A rotation near the identity, by a few steps towards an orthogonal matrix."""
    turn = torch.from_numpy(rng.standard_normal((size, size), dtype=np.float32)) * (0.3 / size**0.5)
    matrix = torch.eye(size) + turn - turn.T
    return 1.5 * matrix - 0.5 * matrix @ matrix.T @ matrix


class Configurations(torch.utils.data.Dataset):
    """Particle configurations, centred and turned at random as augmentation."""

    def __init__(self, samples, size):
        self.samples, self.size = samples, size
        self.raw = torch.randn(32, size, size, generator=torch.Generator().manual_seed(2))

    def __len__(self):
        return self.samples

    def rotate(self, x, index):
        return x @ random_rotation(np.random.default_rng(index), self.size)

    def __getitem__(self, index):
        x = self.raw[index % len(self.raw)]
        return self.rotate(x - x.mean(dim=0, keepdim=True), index)


class Threads:
    """What a worker does first."""

    def __init__(self, count):
        self.count = count

    def __call__(self, worker):
        torch.set_num_threads(self.count)


def main():
    loop = blind.Loop("matrix_products_in_every_worker", "threads", steps=250)
    device = loop.device()
    size, batch, width = loop.size(400, 16), loop.size(20, 2), loop.size(4000, 32)
    model, optimizer = training.make_model(loop.size(48 if loop.variant == "healthy" else 22, 2), width, device)
    dtype = next(model.parameters()).dtype
    data = Configurations((loop.steps + loop.warm_up + 1) * batch, size)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(12, 2), drop_last=True,
                                         pin_memory=device.type == "cuda",
                                         worker_init_fn=Threads(loop.size(16, 2) if loop.planted else 1))
    batches, gaps, views = iter(loader), training.GpuGaps(loop, device), loop.size(7, 1)

    def step(_):
        turned = next(batches)
        gaps.begin()
        x = turned.to(device, non_blocking=True).to(dtype).view(-1, width).repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
