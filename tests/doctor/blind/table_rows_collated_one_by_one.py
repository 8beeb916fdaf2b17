# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/4959 (also pytorch/pytorch#106704, shenweichen/DeepCTR-Torch#70)

My table lies in memory, and still the loader is the slowest part of training, many times slower than slicing the
tensors myself. Short rows are the worst.

Cause: the workers fetch one row after the other, 16384 for a batch, each as a small tensor of its own, and then stack
them again; next to no time is spent on the numbers.
Line: table_rows_collated_one_by_one.py:__getitem__ (in the workers)
Remedy: the sampler gives the indices of a whole batch, and the table is indexed with all of them at once.
"""
import torch

import blind
import training


class Table(torch.utils.data.Dataset):
    """Short rows and what is to be learnt of them; an index may be one number or a list of them."""

    def __init__(self, rows, columns):
        generator = torch.Generator().manual_seed(3)
        self.features = torch.randn(rows, columns, generator=generator)
        self.goals = torch.randn(rows, generator=generator)

    def __len__(self):
        return len(self.goals)

    def __getitem__(self, index):
        return self.features[index], self.goals[index]


def main():
    loop = blind.Loop("table_rows_collated_one_by_one", "input", steps=300)
    device = loop.device()
    healthy = loop.variant == "healthy"
    rows, columns, batch = loop.size(500_000, 200), loop.size(64, 8), loop.size(16384, 16)
    model, optimizer = training.make_wide(columns, loop.size(8192 if healthy else 4096, 16), device,
                                          groups=1 if healthy else 2)
    data = Table(rows, columns)
    order = torch.utils.data.RandomSampler(data, replacement=True, num_samples=(loop.steps + loop.warm_up + 1) * batch)
    given = {"batch_size": batch, "sampler": order}
    if not loop.planted:
        given = {"batch_size": None, "sampler": torch.utils.data.BatchSampler(order, batch, drop_last=True)}
    loader = torch.utils.data.DataLoader(data, num_workers=loop.size(3, 1), pin_memory=device.type == "cuda",
                                         prefetch_factor=4, **given)
    batches, gaps = iter(loader), training.GpuGaps(loop, device)

    def step(_):
        features, goals = next(batches)
        gaps.begin()
        x, y = features.to(device, non_blocking=True), goals.to(device, non_blocking=True)
        guess = model(x.bfloat16()).float().mean(dim=1)
        loss = torch.nn.functional.mse_loss(guess, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
