# SPDX-License-Identifier: Apache-2.0
"""github.com/Lightning-AI/torchmetrics/pull/2943

With a dozen metrics kept the usual way, training a recommender is noticeably slower than without them, although a
metric is a sum and a count.

Cause: every update tests its values for NaN and brings the answer to the host before it goes on, once per metric, so
the queue stays empty and the small launches of the updates are all waited for.
Line: metrics_that_look_for_nan.py:update
Remedy: a sum that skips NaN on the GPU, without a question to the host; values are read when they are shown.
"""
import warnings

import torch
from torch import nn

import blind
import training


class Mean:
    """A running mean in the style of a metrics library; `check` is its way with NaN."""

    def __init__(self, name, device, check):
        self.name, self.check = name, check
        self.value, self.weight = torch.zeros((), device=device), torch.zeros((), device=device)

    def update(self, values):
        values = values.detach().float()
        if self.check:
            missing = torch.isnan(values)
            if missing.any():
                warnings.warn(f"{self.name}: NaN values are left out")
                values = values[~missing]
            weight = torch.ones_like(values)
            if weight.sum() == 0:
                return
        else:
            weight = (values == values).float()
            values = torch.nan_to_num(values)
        self.value += (values * weight).sum()
        self.weight += weight.sum()


class Recommender(nn.Module):
    """Bags of item ids, whose tables have sparse gradients, and a tower in bfloat16."""

    def __init__(self, tables, rows, size, width, dtype):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, size, mode="sum", sparse=True) for _ in range(tables))
        self.tower = nn.Sequential(nn.Linear(tables * size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                   nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).to(dtype)

    def forward(self, ids):
        bags = torch.cat([table(i) for table, i in zip(self.tables, ids)], dim=1)
        return self.tower(bags.to(self.tower[0].weight.dtype)).float().squeeze(1)


def measured(score, clicked, groups):
    """Loss, hits and calibration of all rows and of the rows of each group."""
    loss = nn.functional.binary_cross_entropy_with_logits(score, clicked, reduction="none")
    hit = ((score > 0) == (clicked > 0.5)).float()
    parts = [slice(g * len(score) // groups, (g + 1) * len(score) // groups) for g in range(groups)]
    return loss, [values[part] for part in parts for values in (loss, hit, torch.sigmoid(score) - clicked)]


def main():
    loop = blind.Loop("metrics_that_look_for_nan", "sync", steps=700)
    device = loop.device()
    torch.manual_seed(0)
    batch = loop.size(32768 if loop.variant == "healthy" else 12288, 8)
    tables, rows, groups = loop.size(8, 2), loop.size(200_000, 50), 6
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Recommender(tables, rows, loop.size(128, 4), loop.size(4096, 16), dtype).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ids = torch.randint(rows, (4, tables, batch, 4), device=device)
    clicked = (torch.rand(4, batch, device=device) < 0.2).float()
    metrics = [Mean(f"metric {k}", device, loop.planted) for k in range(3 * groups)]
    cheap = [Mean(metric.name, device, False) for metric in metrics]
    span = training.GpuSpan(loop, device)

    def update_all(kept, values):
        for metric, value in zip(kept, values):
            metric.update(value)

    values = measured(torch.zeros(batch, device=device), clicked[0], groups)[1]
    span.due = span.queued(lambda: update_all(cheap, values))

    def step(i):
        loss, values = measured(model(ids[i % 4]), clicked[i % 4], groups)
        optimizer.zero_grad(set_to_none=True)
        loss.mean().backward()
        optimizer.step()
        span.begin()
        update_all(metrics, values)
        span.end()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
