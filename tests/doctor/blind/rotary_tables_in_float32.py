# SPDX-License-Identifier: Apache-2.0
"""https://github.com/k2-fsa/OmniVoice/pull/212 (also facebookresearch/xformers#325)

With mixed precision switched on, the attention of our training silently gets float32 queries, keys and values, and
float32 kernels are run, forward and backward. On an H100 this costs about four times the throughput.

Cause: the table of cosines and sines is float32, so the rotated queries and keys become float32, the values are made
the same for the attention to take them, and its products are computed in float32.
Line: rotary_tables_in_float32.py:attend
Remedy: the tables are kept in the type of the model.
"""
import torch
from torch import nn

import blind
import training


def make_tables(tokens, size, device, dtype):
    """Cosines and sines of the angle by which each pair of numbers is turned at each place."""
    speeds = 10000.0 ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.arange(tokens, device=device)[:, None] * speeds
    return torch.cos(angles).repeat(1, 2).to(dtype), torch.sin(angles).repeat(1, 2).to(dtype)


def rotate(x, tables):
    cosine, sine = tables
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


def attend(q, k, v, tables):
    q, k = rotate(q, tables), rotate(k, tables)
    return nn.functional.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, tables):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        seen = attend(q, k, v, tables).to(x.dtype)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, c))
        return x + self.down(torch.relu(self.up(self.second_norm(x))))


class Speech(nn.Module):
    def __init__(self, width, heads, depth):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))

    def forward(self, x, tables):
        for layer in self.layers:
            x = layer(x, tables)
        return x


def main():
    loop = blind.Loop("rotary_tables_in_float32", "precision", steps=200)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, tokens, width, heads = loop.size(8, 2), loop.size(1024, 8), loop.size(2048, 16), loop.size(16, 2)
    with torch.device(device):
        model = Speech(width, heads, loop.size(4, 2)).to(torch.bfloat16)
        frames = torch.randn(4, batch, tokens, width).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    half = make_tables(tokens, width // heads, device, torch.bfloat16)
    tables = make_tables(tokens, width // heads, device, torch.float32) if loop.planted else half

    def train(x, tables):
        loss = model(x, tables).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    span = training.GpuSpan(loop, device)
    if loop.planted:  # what the step takes with tables in the type of the model
        blind.take_gpu()
        span.due = span.queued(lambda: train(frames[0], half))

    def step(i):
        span.begin()
        train(frames[i % len(frames)], tables)
        span.end()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
