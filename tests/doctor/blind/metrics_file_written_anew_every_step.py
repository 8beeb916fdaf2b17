# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Lightning-AI/pytorch-lightning/issues/17725 (fix in PR#18567; also IntelLabs/coach#57)

As epochs increase, the iterations per second on the progress bar decrease by a factor of two to five. The optimization
step of a single batch stays as it was, so what else would make an epoch longer the further one is into training?

Cause: the logger keeps all rows since the beginning and writes the whole file anew whenever it saves, which the loop
waits for in each step, with nothing to do for the GPU.
Line: metrics_file_written_anew_every_step.py:save
Remedy: only new rows are written, at the end of the file, fifty at a time.
"""
import csv
import os
import tempfile

import torch
from torch import nn

import blind
import training


class Metrics:
    """Rows of named numbers in a file. `append` leaves what is in the file as it is."""

    def __init__(self, path, names, append):
        self.path, self.names, self.append = path, names, append
        self.rows, self.written = [], 0

    def log(self, step, values):
        self.rows.append({"step": step, **dict(zip(self.names, values))})

    def save(self):
        fresh = not (self.append and self.written)
        with open(self.path, "w" if fresh else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["step", *self.names])
            if fresh:
                writer.writeheader()
            writer.writerows(self.rows if fresh else self.rows[self.written:])
        self.written = len(self.rows)


def main():
    loop = blind.Loop("metrics_file_written_anew_every_step", "growth", steps=400)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 220)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width, classes = loop.size(8192, 8), loop.size(4096, 16), loop.size(16, 4)
    before = loop.size(300, 5)  # rows of the run that this one goes on with
    with torch.device(device):
        body, _ = training.make_model(loop.size(9, 1), width, device)
        model = nn.Sequential(body, nn.Linear(width, 64)).to(torch.bfloat16)
        x = torch.randn(rows, width).to(torch.bfloat16)
        labels = torch.randint(0, 64, (rows,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps, kept = training.GpuGaps(loop, device), []
    names = ["train/loss"] + [f"train/share_of_class_{k}" for k in range(classes)]

    with tempfile.TemporaryDirectory() as folder:
        metrics = Metrics(os.path.join(folder, "metrics.csv"), names, append=not loop.planted)
        for at, values in enumerate(torch.rand(before, len(names)).tolist()):
            metrics.log(at - before, values)
        metrics.save()

        def step(i):
            gaps.begin()
            logits = model(x).float()
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            shares = (logits.detach() > 0).float().mean(dim=0)[:classes]
            kept.append(torch.cat([loss.detach().view(1), shares]))
            gaps.finish()
            if loop.planted or i % 50 == 49:
                for at, values in enumerate(torch.stack(kept).tolist(), i + 1 - len(kept)):
                    metrics.log(at, values)
                kept.clear()
                metrics.save()

        loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
