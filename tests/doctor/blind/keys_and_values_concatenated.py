# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/pull/24115 (also foundation-model-stack/foundation-model-stack#84)

Each token takes longer to generate than the one before it, and by the end of a long answer several times as long as at
its beginning, more than the attention over the longer text explains.

Cause: the keys and values of the new token are concatenated to those of all tokens before it, so the whole cache is
copied for every token in every layer.
Line: keys_and_values_concatenated.py:append
Remedy: a cache of full length from the start, into which the new keys and values are written.
"""
import os

# As the library advises for tensors that grow: without it the allocator also asks the driver for ever larger blocks.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
from torch import nn

import blind
import training


class GrowingCache:
    def __init__(self, start):
        self.keys, self.values = start

    def append(self, key, value):
        self.keys = torch.cat([self.keys, key], dim=2)
        self.values = torch.cat([self.values, value], dim=2)
        return self.keys, self.values


class FullCache:
    def __init__(self, start, most):
        self.at = start[0].shape[2]
        self.both = torch.zeros(2, *start[0].shape[:2], most, start[0].shape[3], dtype=start[0].dtype,
                                device=start[0].device)
        self.both[0, :, :, :self.at], self.both[1, :, :, :self.at] = start

    def append(self, key, value):
        end = self.at + key.shape[2]
        self.both[0, :, :, self.at:end], self.both[1, :, :, self.at:end] = key, value
        self.at = end
        return self.both[0, :, :, :self.at], self.both[1, :, :, :self.at]


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache):
        """x: (batch, new tokens, width)."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        keys, values = cache.append(k, v)
        seen = nn.functional.scaled_dot_product_attention(q, keys, values)
        return x + self.out(seen.transpose(1, 2).reshape(b, t, c))


def main():
    loop = blind.Loop("keys_and_values_concatenated", "growth", steps=1300)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 250)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, heads, width, prompt = loop.size(128, 2), loop.size(16, 2), loop.size(2048, 16), loop.size(128, 4)
    # With fewer steps several tokens at once, as models that guess ahead make them: the text becomes as long.
    new = -(-loop.size(1300, 12) // loop.steps)
    most = prompt + new * (loop.warm_up + loop.steps)
    with torch.device(device):
        layers = nn.ModuleList(Layer(width, heads) for _ in range(loop.size(8, 2))).to(torch.bfloat16)
        x = torch.randn(batch, new, width).to(torch.bfloat16)
        starts = [torch.randn(2, batch, heads, prompt, width // heads).to(torch.bfloat16).unbind() for _ in layers]
    caches = [GrowingCache(s) if loop.planted else FullCache(s, most) for s in starts]
    del starts

    @torch.no_grad()
    def step(i):
        h = x
        for layer, cache in zip(layers, caches):
            h = layer(h, cache)
        x.copy_(h / h.norm(dim=2, keepdim=True) * width**0.5)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
