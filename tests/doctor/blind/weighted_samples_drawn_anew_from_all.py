# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/32221 (with replacement, and a remedy: pytorch/pytorch#94131)

Interactions of a shop's customers are drawn by weight, without replacement. A few hundred thousand of millions make an
epoch, yet the first batch of each epoch comes very late; the batches after it come at once.

Cause: at the start of an epoch the sampler draws a random number for every interaction there is and looks for the
largest of them, on one core, in the training process.
Line: weighted_samples_drawn_anew_from_all.py:batches (its loop over the loader, whose sampler draws)
Remedy: the sums of the weights are formed once; a batch is looked up in them by as many random numbers as it has rows.
"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, WeightedRandomSampler

import blind
import training

IDS = 8


class Interactions(Dataset):
    """Ids of customer, item and circumstances; a batch of them is read at once."""

    def __init__(self, count, known):
        self.ids = torch.randint(0, known, (count, IDS), dtype=torch.int32)
        self.bought = torch.rand(count) < 0.1

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, rows):
        rows = torch.as_tensor(rows)
        return self.ids[rows], self.bought[rows]


class SumsOnce:
    """Batches of rows by weight, from sums that are formed only here."""

    def __init__(self, weights, batch, count):
        self.sums, self.batch, self.count = weights.cumsum(0), batch, count

    def __len__(self):
        return self.count

    def __iter__(self):
        for _ in range(self.count):
            drawn = torch.rand(self.batch, dtype=torch.float64) * self.sums[-1]
            # In order, so that neighbouring draws look at the same parts of the sums.
            yield torch.searchsorted(self.sums, drawn.sort().values).clamp_(max=len(self.sums) - 1)


class Ranker(nn.Module):
    def __init__(self, known, size, width):
        super().__init__()
        self.table, self.network = nn.Embedding(known, size), training.WideNetwork(IDS * size, width, 64)
        self.table.weight.requires_grad_(False)  # learnt before; only the ranking is trained

    def forward(self, ids):
        return self.network(self.table(ids).flatten(1))[:, 0]


def batches(loader):
    while True:
        for batch in loader:
            yield batch


def main():
    loop = blind.Loop("weighted_samples_drawn_anew_from_all", "input")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    count, batch, per_epoch = loop.size(4_000_000, 500), loop.size(16384, 8), loop.size(20, 2)
    known, width = loop.size(200_000, 50), loop.size(4096, 16)
    data, weights = Interactions(count, known), torch.rand(count, dtype=torch.float64) + 0.01
    if loop.planted:
        sampler = BatchSampler(WeightedRandomSampler(weights, batch * per_epoch, replacement=False), batch, False)
    else:
        sampler = SumsOnce(weights, batch, per_epoch)
    coming = batches(DataLoader(data, sampler=sampler, batch_size=None, pin_memory=device.type == "cuda"))
    with torch.device(device):
        model = Ranker(known, loop.size(128, 4), width).to(torch.bfloat16)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step(i):
        ids, bought = (part.to(device, non_blocking=True) for part in next(coming))
        loss = F.binary_cross_entropy_with_logits(model(ids).float(), bought.float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
