# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/132714 (also pytorch/pytorch#117281 and meta-pytorch/gpt-fast#21)

With mode="reduce-overhead" the compiled model should generate from CUDA graphs. It says "skipping cudagraphs due to
mutated inputs" and is four times slower than before: 2 times as fast as without compilation, where it was 8.6 times.

Cause: the keys and values are arguments that the compiled function writes to. It records no graph over an argument
that it changes, and launches every kernel of every token by itself.
Line: graphs_skipped_for_a_changed_cache.py:step (its call of the compiled model).
Remedy: keys and values are buffers of the module. Their addresses are known to stay, so a graph may write to them.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import blind
import training


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.norm_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, at, seen, keys, values):
        rows, width = x.shape
        query, key, value = self.into(self.norm(x)).view(rows, 3, self.heads, 1, width // self.heads).unbind(1)
        keys.index_copy_(2, at, key)
        values.index_copy_(2, at, value)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        x = x + self.out(attended.reshape(rows, width))
        return x + self.narrow(F.gelu(self.wide(self.norm_wide(x))))


class Decoder(nn.Module):
    """Its caches are buffers of its own if `keep`, otherwise arguments of each call."""

    def __init__(self, layers, width, heads, rows, length, keep):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.keep, self.length = keep, length
        for name in self.names() if keep else []:
            self.register_buffer(name, torch.zeros(rows, heads, length, width // heads))

    def names(self):
        return [f"{kind}_{i}" for kind in ("keys", "values") for i in range(len(self.layers))]

    def forward(self, x, at, caches):
        if self.keep:
            caches = [getattr(self, name) for name in self.names()]
        seen = torch.arange(self.length, device=x.device) <= at
        count = len(self.layers)
        for layer, keys, values in zip(self.layers, caches[:count], caches[count:]):
            x = layer(x, at, seen.expand(len(x), layer.heads, 1, -1), keys, values)
        return F.normalize(x, dim=-1)


def main():
    loop = blind.Loop("graphs_skipped_for_a_changed_cache", "launch", steps=200)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    layers, width, heads, rows = loop.size(12, 2), loop.size(1024, 32), loop.size(16, 2), loop.size(8, 2)
    length, tokens = loop.size(1024, 32), loop.size(16, 3)
    kept = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Decoder(layers, width, heads, rows, length, not loop.planted).to(device, kept).eval()
    caches = []
    if loop.planted:
        caches = [torch.zeros(rows, heads, length, width // heads, device=device, dtype=kept) for _ in model.names()]
    start = torch.randn(rows, width, device=device, dtype=kept)
    x, at = start.clone(), torch.zeros(1, dtype=torch.long, device=device)
    # On a CPU there are no graphs to skip: there it only shows that the model runs.
    decode = torch.compile(model, mode="reduce-overhead") if device.type == "cuda" else model

    @torch.no_grad()
    def step(i):
        x.copy_(start)
        at.fill_(length // 2)
        for _ in range(tokens):
            x.copy_(decode(x, at, caches))  # copied: the next replay writes to the same output
            at.add_(1)

    step(0)  # compiles, before the GPU is taken
    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
