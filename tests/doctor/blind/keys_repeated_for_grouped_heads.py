# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/issues/28425 (remedy discussed in karpathy/nanochat#127)

I changed a model so that its query heads share keys and values, because this should make it faster. It is slower than
the same model without shared heads.

Cause: in every layer and for every token, the whole cache of keys and values is copied once for each query head that
shares it, and the attention then reads all of these copies.
Line: keys_repeated_for_grouped_heads.py:repeat_heads (called by attend).
Remedy: the query heads of a group are passed as several queries of one head, so that no key is copied.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import blind
import training


def repeat_heads(cached, times):
    """(batch, heads, length, depth) to (batch, heads * times, length, depth)."""
    batch, heads, length, depth = cached.shape
    return cached[:, :, None].expand(batch, heads, times, length, depth).reshape(batch, heads * times, length, depth)


def attend(query, keys, values, repeat):
    """One new query for each of the query heads: (batch, query heads, depth), the heads of a group side by side."""
    batch, heads, depth = query.shape
    group = heads // keys.shape[1]
    if repeat:
        query, keys, values = query[:, :, None], repeat_heads(keys, group), repeat_heads(values, group)
    else:
        query = query.view(batch, heads // group, group, depth)
    return F.scaled_dot_product_attention(query, keys, values).reshape(batch, heads * depth)


class Layer(nn.Module):
    def __init__(self, width, heads, shared, rows, length, repeat):
        super().__init__()
        self.heads, self.shared, self.depth, self.repeat = heads, shared, width // heads, repeat
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * shared * self.depth, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.register_buffer("keys", torch.randn(rows, shared, length, self.depth))
        self.register_buffer("values", torch.randn(rows, shared, length, self.depth))

    def forward(self, x, at):
        normed = self.norm(x)
        key, value = self.key_value(normed).view(len(x), 2, self.shared, self.depth).unbind(1)
        self.keys[:, :, at], self.values[:, :, at] = key, value
        query = self.query(normed).view(len(x), self.heads, self.depth)
        return x + self.out(attend(query, self.keys[:, :, : at + 1], self.values[:, :, : at + 1], self.repeat))


def main():
    loop = blind.Loop("keys_repeated_for_grouped_heads", "memory", steps=150)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width, layers = loop.size(32, 2), loop.size(4096, 64), loop.size(8, 2)
    heads, shared = loop.size(32, 8), loop.size(4, 2)
    prompt, tokens = loop.size(8192, 24), loop.size(4, 2)
    kept = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = [Layer(width, heads, shared, rows, prompt + tokens, loop.planted).to(kept) for _ in range(layers)]
        start = torch.randn(rows, width, dtype=kept)

    @torch.inference_mode()
    def step(i):
        """A few tokens after a long prompt, which is in the cache already."""
        x = start
        for at in range(prompt, prompt + tokens):
            for layer in model:
                x = layer(x, at)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
