# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch/issues/65078

At a certain size of the model the same sharded training suddenly runs several times slower, with no error: allocations
that were free before take most of a step.

Cause: the GPU is nearly full and the sizes change from step to step, so the caching allocator has to give its blocks
back to the driver and ask for others, again and again.
Line: allocator_retries_near_full_memory.py:forward
Remedy: leave room: less of the feature table is kept on the GPU.
"""
import numpy as np
import torch
from torch import nn

import blind
import training


class Mixer(nn.Module):
    """Many large activations for few products, as in models that train on long sequences."""

    def __init__(self, width, layers):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for linear in self.maps:
            h = linear(x)
            x = x + torch.sin(h) * torch.sigmoid(x)
        return x


def make_step(model, optimizer, source):
    def train(tokens):
        loss = model(source[:tokens]).square().mean(dtype=torch.float32)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return train


def feature_table(loop, device, needed):
    """Precomputed features, as many as fit beside the training (planted), or enough fewer to leave room for it."""
    if device.type != "cuda":
        return torch.zeros(16, dtype=torch.uint8)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    free -= 1 << 30  # stays with the driver, whatever the allocator asks for
    torch.cuda.set_per_process_memory_fraction((free + torch.cuda.memory_reserved()) / total)
    room = int(1.1 * needed) if loop.planted else min(6 * needed, int(0.8 * free))
    return torch.zeros(max(1, free - room), dtype=torch.uint8, device=device)


def main():
    loop = blind.Loop("allocator_retries_near_full_memory", "memory", steps=200)
    device = loop.device()
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    width, longest = loop.size(1024, 16), loop.size(196_608, 64)
    model = Mixer(width, loop.size(8, 2)).to(device, torch.bfloat16 if cuda else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    source = torch.randn(longest, width, device=device, dtype=next(model.parameters()).dtype)
    train = make_step(model, optimizer, source)
    lengths = np.random.default_rng(3).integers(int(0.4 * longest), longest, size=8).tolist() + [longest]
    if loop.variant == "healthy":
        lengths = [longest]
    span = training.GpuSpan(loop, device)
    train(longest)
    due = {tokens: span.queued(lambda: train(tokens)) for tokens in lengths}
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        resident = torch.cuda.memory_allocated()
    train(longest)
    table = feature_table(loop, device, torch.cuda.max_memory_allocated() - resident if cuda else 0)

    def step(i):
        tokens = lengths[(5 * i) % len(lengths)]
        span.due = due[tokens]
        span.begin()
        train(tokens)
        span.end()

    loop.run(step, blind.wait_for(device))
    del table


if __name__ == "__main__":
    main()
