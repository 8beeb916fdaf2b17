# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/peft/pull/2894

A fine-tuning script takes twice as long as the model should need. Someone had added a garbage collection and a clearing
of the allocator's cache after every step so that memory would not run out.

Cause: `gc.collect()` walks every Python object of the process, `empty_cache()` gives memory back that the next step
must ask for anew; both run after the loss was read, so the GPU has nothing to do meanwhile.
Line: garbage_collection_every_step.py:clean_up
Remedy: no collection, no clearing; the price is a higher peak of reserved memory.
"""
import gc
import time

import numpy as np
import torch
from torch import nn

import blind


class Adapter(nn.Module):
    """A frozen layer with a trained low-rank part beside it."""

    def __init__(self, width, rank):
        super().__init__()
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return x + nn.functional.gelu(self.frozen(x) + self.up(self.down(x)))


def make_samples(count, seed):
    """Tokenised samples as a data set holds them in memory: a dictionary each, with lists in it."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 32000, size=(count, 8)).tolist()
    return [{"ids": row, "mask": [1] * 8, "meta": {"n": n, "tags": [n, "train"]}} for n, row in enumerate(ids)]


def clean_up(device):
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main():
    loop = blind.Loop("garbage_collection_every_step", "host", steps=180)
    device = loop.device()
    torch.manual_seed(0)
    samples = make_samples(loop.size(10000, 500), 0)
    width, rank = loop.size(4096, 32), loop.size(64, 4)
    rows = loop.size(16384 if loop.variant == "healthy" else 12288, 16)
    model = nn.Sequential(*(Adapter(width, rank) for _ in range(loop.size(24, 2)))).to(device, torch.bfloat16)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-4)
    table = torch.randn(1000, width, device=device, dtype=torch.bfloat16)
    losses = []

    def step(i):
        sample = samples[i % len(samples)]
        ids = torch.tensor(sample["ids"], device=device) % 1000
        x = table[ids].repeat(rows // 8, 1)
        loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if loop.planted:  # item() has waited for the GPU; the new allocations of the next step come on top of this
            del x, loss
            begin = time.perf_counter()
            clean_up(device)
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
