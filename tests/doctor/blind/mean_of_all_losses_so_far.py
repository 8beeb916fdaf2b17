# SPDX-License-Identifier: Apache-2.0
"""https://github.com/mlverse/luz/pull/124

The average of the loss is shown while training, and with many iterations in an epoch that makes the epoch slow: each
iteration takes a little longer than the one before.

Cause: four lists keep the values of every step as tensors on the GPU, and every step sums each list up again: a kernel
for each entry, a few hundred in the beginning and thousands at the end.
Line: mean_of_all_losses_so_far.py:averages
Remedy: a running sum for each of them, to which one value is added.
"""
import collections

import torch
from torch import nn

import blind
import training


class History:
    """The metrics of the steps, and their means for the progress bar, all without asking the GPU."""

    def __init__(self, keep_all):
        self.keep_all, self.values = keep_all, collections.defaultdict(list)
        self.sums, self.steps, self.shown = {}, 0, None

    def add(self, **metrics):
        self.steps += 1
        for name, value in metrics.items():
            if self.keep_all:
                self.values[name].append(value)
            else:
                self.sums[name] = self.sums[name] + value if name in self.sums else value

    def averages(self):
        if self.keep_all:
            return {name: sum(values) / len(values) for name, values in self.values.items()}
        return {name: total / self.steps for name, total in self.sums.items()}


def main():
    loop = blind.Loop("mean_of_all_losses_so_far", "growth", steps=1000)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 400)
        return training.run_full_steps(loop, device)
    rows, width, classes = loop.size(4096, 16), loop.size(4096, 16), loop.size(256, 8)
    body, _ = training.make_model(loop.size(8, 1), width, device)
    model = nn.Sequential(body, nn.Linear(width, classes).to(device, next(body.parameters()).dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, width, generator=generator).to(device, next(body.parameters()).dtype)
    y = torch.randint(classes, (rows,), generator=generator).to(device)
    history = History(loop.planted)

    def step(i):
        logits = model(x).float()
        loss = nn.functional.cross_entropy(logits, y)
        size = logits.square().mean()
        optimizer.zero_grad(set_to_none=True)
        (loss + 1e-4 * size).backward()
        optimizer.step()
        with torch.no_grad():
            right = (logits.argmax(dim=1) == y).float().mean()
            history.add(loss=loss.detach(), size=size.detach(), right=right, sure=logits.amax(dim=1).mean())
            means = history.averages()
        if i % 500 == 0:
            history.shown = {name: value.item() for name, value in means.items()}

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
