# SPDX-License-Identifier: Apache-2.0
"""https://github.com/lm-sys/FastChat/issues/458 (also Dao-AILab/flash-attention#607)

I trained the model with and without flash attention, on one A100 each, and it is not faster with it. How much faster
ought it to be, and how do I find out whether it is used?

Cause: none. The prompts are short, so attention is a hundredth of the step; the time goes into the products of the
other layers, which fill the GPU.
Line: flash_attention_for_short_prompts.py:forward
Remedy: there is none to find; `fixed` does the obvious thing and calls the fused attention.
Trap: the attention is the part that everybody speaks of, but there is next to nothing to save in it.
"""
import torch
from torch import nn

import blind
import training


def plain_attention(q, k, v):
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    return scores.softmax(dim=3) @ v


class Layer(nn.Module):
    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm, self.second_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(8 * width, width, bias=False)

    def forward(self, x):
        """x: (batch, tokens, width)."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(torch.relu(self.up(self.second_norm(x))))


def main():
    loop = blind.Loop("flash_attention_for_short_prompts", "none", steps=150)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, tokens, width, heads = loop.size(64, 2), loop.size(64, 4), loop.size(8192, 16), loop.size(64, 2)
    attention = plain_attention if loop.planted else nn.functional.scaled_dot_product_attention
    with torch.device(device):
        layer = Layer(width, heads, attention).to(torch.bfloat16)
        x = torch.randn(batch, tokens, width).to(torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
    loop.run(lambda i: training.train(layer, optimizer, x), blind.wait_for(device))


if __name__ == "__main__":
    main()
