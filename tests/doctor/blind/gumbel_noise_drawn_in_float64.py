# SPDX-License-Identifier: Apache-2.0
"""https://github.com/ML-GSAI/LLaDA/issues/62

Is float64 needed where the tokens are drawn? With a narrower type the results hardly change, and much memory is saved.

Cause: the logits, 134 million of them, are widened to float64 for the noise and for the confidence, so each of a dozen
passes over them moves 8 bytes a value, four times what the network has computed.
Line: gumbel_noise_drawn_in_float64.py:noisy (and confidence)
Remedy: float32 for both.
"""
import torch
from torch import nn
from torch.nn import functional

import blind
import training


def noisy(logits, temperature, kind):
    """The logits with noise, so that their largest is a draw."""
    logits = logits.to(kind)
    noise = torch.rand_like(logits, dtype=kind).clamp_(min=1e-20)
    return logits.exp() / (-torch.log(noise)) ** temperature


def confidence(logits, tokens, kind):
    """What the network gives the tokens that were drawn."""
    chances = functional.softmax(logits.to(kind), dim=-1)
    return chances.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Denoiser(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        return self.head(self.layers(self.tokens(ids)))


def main():
    loop = blind.Loop("gumbel_noise_drawn_in_float64", "precision", steps=450)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    words, width, layers = loop.size(32768, 64), loop.size(2048, 16), loop.size(4, 1)
    texts, length = loop.size(16, 2), loop.size(256, 8)
    model = Denoiser(words, width, layers).to(device, torch.bfloat16).eval()
    kind = torch.float64 if loop.planted else torch.float32
    unknown = words - 1
    ids = torch.full((texts, length), unknown, device=device)

    @torch.no_grad()
    def step(i):
        """One round of filling in: the surest quarter of the unknown tokens are kept."""
        nonlocal ids
        if i % 8 == 0:
            ids = torch.full_like(ids, unknown)
        logits = model(ids)
        drawn = torch.argmax(noisy(logits, 0.7, kind), dim=-1)
        sure = confidence(logits, drawn, kind).masked_fill(ids != unknown, -1.0)
        best = sure.topk(length // 4, dim=-1).indices
        keep = torch.zeros_like(ids, dtype=torch.bool).scatter_(1, best, True) & (ids == unknown)
        ids = torch.where(keep, drawn, ids)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
