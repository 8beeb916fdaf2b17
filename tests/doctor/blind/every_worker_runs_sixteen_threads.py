# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch#19825

After a rebuild, the training example with eight loader workers takes over twice as long as before.

Cause: every worker runs its small CPU tensor operations on an OpenMP pool of sixteen threads; the pools fight for cores
Line: every_worker_runs_sixteen_threads.py:__getitem__ (in the workers)
Remedy: one thread a worker
"""
import torch

import blind
import training


class Spectra(torch.utils.data.Dataset):
    """Samples of `rows` x `width` numbers, scaled and squashed on the CPU."""

    def __init__(self, samples, rows, width):
        self.samples = samples
        self.raw = torch.rand(64, rows, width, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        x = self.raw[index % 64]
        x = x - x.mean()
        x = x * 1.5
        x = torch.tanh(x)
        x = x + 0.1
        return torch.sqrt(x.abs()).bfloat16()


def sixteen_threads(_):
    torch.set_num_threads(16)


def one_thread(_):
    torch.set_num_threads(1)


def main():
    loop = blind.Loop("every_worker_runs_sixteen_threads", "threads", steps=600)
    device = loop.device()
    rows, width = loop.size(16, 4), loop.size(4096, 64)
    batch = loop.size(96, 4)
    layers = loop.size(48 if loop.variant == "healthy" else 24, 2)
    model, optimizer = training.make_model(layers, width, device)
    data = Spectra((loop.steps + loop.warm_up + 1) * batch, rows, width)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(8, 2), drop_last=True,
                                         pin_memory=device.type == "cuda",
                                         worker_init_fn=sixteen_threads if loop.planted else one_thread)
    batches, gaps = iter(loader), training.GpuGaps(loop, device)
    dtype = next(model.parameters()).dtype

    def step(_):
        x = next(batches)
        gaps.begin()
        training.train(model, optimizer, x.to(device, non_blocking=True).to(dtype).flatten(0, 1))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
