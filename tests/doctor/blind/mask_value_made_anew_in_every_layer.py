# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/190217 (the same in an attention of the library: pytorch/pytorch#143927)

The trace of a model's forward pass is full of waits for the stream, although nothing in it is ever read back. It turned
out that making one number on the GPU is a trap.

Cause: each layer makes a few constants as tensors on the GPU: the value of masked scores, the scale, and so on. The
number is written on the host first and copied over, and that copy waits until the GPU has done all before it; the
kernels that follow are launched while the GPU has nothing to do.
Line: mask_value_made_anew_in_every_layer.py:constant (called by forward).
Remedy: torch.full, which passes the number to a kernel that writes it, and nobody waits.
Trap: there is no .item() or copy to the host; the tensors are made on the GPU, as one is told to do.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


def constant(value, like):
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def filled(value, like):
    return torch.full((), value, dtype=like.dtype, device=like.device)


class Block(nn.Module):
    """A block with capped scores, as some recent language models have them."""

    def __init__(self, width, heads, number):
        super().__init__()
        self.heads, self.number = heads, number
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, allowed):
        rows, tokens, width = x.shape
        q, k, v = self.mixed(self.norms[0](x)).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3)
        scores = scores * self.number((width // self.heads) ** -0.5, x)
        cap = self.number(50.0, x)
        scores = torch.tanh(scores / cap) * cap
        scores = torch.where(allowed, scores, self.number(torch.finfo(x.dtype).min, x))
        x = x + self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(rows, tokens, width))
        return x + self.number(0.5, x) * self.down(F.gelu(self.up(self.norms[1](x))))


def main():
    loop = blind.Loop("mask_value_made_anew_in_every_layer", "sync", steps=400)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 200)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, tokens, width = loop.size(8, 2), loop.size(192, 6), loop.size(1024, 16)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    number = constant if loop.planted else filled
    with torch.device(device):
        blocks = nn.ModuleList(Block(width, loop.size(16, 2), number) for _ in range(loop.size(32, 2))).to(dtype)
        texts = [torch.randn(rows, tokens, width).to(dtype) for _ in range(4)]
        allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    totals = torch.zeros(rows, device=device)

    @torch.inference_mode()
    def step(i):
        """Adds up a score of each text."""
        x = texts[i % len(texts)]
        for block in blocks:
            x = block(x, allowed)
        totals.add_(x.float().mean(dim=(1, 2)))

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
