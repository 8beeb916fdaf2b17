# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/6863

Printing a large tensor takes an absurdly long time, ten thousand times as long as it takes to compute it; with the
prints that I had put in to look for an error my training is slow as well.

Cause: the logits of some samples are printed to a log in every step; each number is formatted in Python, twice, while
the GPU has nothing to do.
Line: logits_printed_every_step.py:print_logits
Remedy: print after every hundred steps.
"""
import tempfile
import time

import torch
from torch import nn

import blind
import training


def print_logits(i, logits, log):
    print(f"step {i}: {logits}", file=log, flush=True)


def main():
    loop = blind.Loop("logits_printed_every_step", "host", steps=240)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    torch.set_printoptions(threshold=1_000_000)
    rows, classes, width = loop.size(8192, 8), loop.size(100, 5), loop.size(4096, 16)
    with torch.device(device):
        body, _ = training.make_model(loop.size(7, 1), width, device)
        model = nn.Sequential(body, nn.Linear(width, classes)).to(torch.bfloat16)
        x = torch.randn(rows, width).to(torch.bfloat16)
        labels = torch.randint(0, classes, (rows,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    every = 1 if loop.planted else 100

    with tempfile.TemporaryFile("w") as log:
        def step(i):
            logits = model(x).float()
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if i % every == every - 1:
                shown = logits.detach()[:8].cpu()
                begin = time.perf_counter()  # the step has been waited for: the GPU waits for the print
                print_logits(i, shown, log)
                loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
            else:
                loop.planted_ms.append(0.0)

        loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
