# SPDX-License-Identifier: Apache-2.0
"""https://github.com/paiml/entrenar/issues/240

More than half of the time spent in CUDA calls goes to waiting for the stream, nearly thirty times in each step of a
model with 24 blocks.

Cause: gradients are clipped block by block, and the partial norms of each block are summed up on the host: the GPU is
drained 24 times, and the scaling of a block is only launched after its norm has arrived.
Line: clipping_norms_formed_on_the_host.py:clip_on_host
Remedy: sum and factor stay on the GPU, a few operations over all tensors of a block at once.
"""
import math

import torch
from torch import nn

import blind
import training


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def clip_on_host(blocks, limit):
    for block in blocks:
        grads = [p.grad for p in block.parameters()]
        partial = torch.stack([g.float().square().sum() for g in grads]).cpu().numpy()
        norm = math.sqrt(float(partial.sum()))
        factor = min(1.0, limit / (norm + 1e-6))
        for g in grads:
            g.mul_(factor)


def clip_on_device(blocks, limit):
    for block in blocks:
        grads = [p.grad for p in block.parameters()]
        norm = torch.stack([g.float() for g in torch._foreach_norm(grads)]).norm()
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor)


def main():
    loop = blind.Loop("clipping_norms_formed_on_the_host", "sync", steps=400)
    device = loop.device()
    torch.manual_seed(0)
    width = loop.size(1536, 32)
    rows = loop.size(12288 if loop.variant == "healthy" else 4096, 8)
    model = nn.Sequential(*(Block(width) for _ in range(loop.size(24, 3))))
    model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x = torch.randn(rows, width, device=device, dtype=next(model.parameters()).dtype)
    clip = clip_on_host if loop.planted else clip_on_device
    span = training.GpuSpan(loop, device)

    def backward():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).float().square().mean()
        loss.backward()

    backward()
    span.due = span.queued(lambda: clip_on_device(model, 1.0))

    def step(i):
        backward()
        span.begin()
        clip(model, 1.0)
        span.end()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
