# SPDX-License-Identifier: Apache-2.0
"""github.com/huggingface/optimum/pull/1250 (also Svardfox/LaViT#4).

Attention over long sequences is slow and takes much memory although the fused attention call is used everywhere.

Cause: the model always hands over a dense mask, even when nothing is masked; a dense mask rules out the flash kernel.
Line: attention_with_an_empty_mask.py:forward.
Remedy: no mask when there is nothing to mask.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


def attend(q, k, v, mask):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # PyTorch before 2.0
    return torch.softmax(scores if mask is None else scores + mask, dim=-1) @ v


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return x + self.out(attend(q, k, v, mask).transpose(1, 2).reshape(b, t, c))


def main():
    loop = blind.Loop("attention_with_an_empty_mask", "memory", steps=350)
    device = loop.device()
    torch.manual_seed(0)
    width, heads, tokens = loop.size(1024, 32), loop.size(16, 2), loop.size(8192, 64)
    # Healthy: the batch is larger and no mask was ever built.
    batch = loop.size(3 if loop.variant == "healthy" else 2, 2)
    layers = nn.ModuleList(Attention(width, heads) for _ in range(loop.size(2, 1))).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)
    x = torch.randn(2, batch, tokens, width, device=device, dtype=torch.bfloat16)
    mask = torch.zeros(batch, 1, tokens, tokens, device=device, dtype=torch.bfloat16) if loop.planted else None

    def step(i):
        y = x[i % 2]
        for layer in layers:
            y = layer(y, mask)
        loss = y.float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
