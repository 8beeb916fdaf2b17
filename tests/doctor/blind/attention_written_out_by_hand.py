# SPDX-License-Identifier: Apache-2.0
"""https://github.com/karpathy/nanoGPT/issues/178 (with and without: h2oai/h2ogpt#128)

The same training run takes far longer with one version of the library than with the next, on the same GPU, which is
busy in both cases. The model writes its attention out where the library has no fused one.

Cause: the matrix of all pairs of tokens, 0.3 GB per layer, goes through memory again for the scale, the mask, the
softmax and the dropout, and as often in the backward pass.
Line: attention_written_out_by_hand.py:attend
Remedy: scaled_dot_product_attention, which never stores that matrix.
"""
import math

import torch
from torch import nn
from torch.nn import functional

import blind
import training


class Attention(nn.Module):
    def __init__(self, width, heads, length, dropout, by_hand):
        super().__init__()
        self.heads, self.dropout, self.by_hand = heads, dropout, by_hand
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("seen", torch.tril(torch.ones(length, length, dtype=torch.bool)))

    def attend(self, q, k, v):
        if not self.by_hand:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                           dropout_p=self.dropout if self.training else 0.0)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.size(-1)))
        scores = scores.masked_fill(~self.seen, float("-inf"))
        weights = self.drop(functional.softmax(scores, dim=-1))
        return weights @ v

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, length, by_hand):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, length, 0.1, by_hand)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    def __init__(self, words, width, heads, length, layers, by_hand):
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, length, by_hand) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    loop = blind.Loop("attention_written_out_by_hand", "memory", steps=300)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    words, width, heads = loop.size(8192, 64), loop.size(1024, 32), loop.size(16, 2)
    rows, length, layers = loop.size(8, 2), loop.size(1024, 16), loop.size(6, 1)
    model = Model(words, width, heads, length, layers, loop.planted).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    text = torch.randint(words, (4, rows, length + 1), generator=torch.Generator().manual_seed(1)).to(device)

    def step(i):
        ids = text[i % 4]
        logits = model(ids[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
