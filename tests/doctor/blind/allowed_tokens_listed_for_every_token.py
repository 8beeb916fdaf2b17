# SPDX-License-Identifier: Apache-2.0
"""https://github.com/epfl-dlab/transformers-CFG/issues/69 (also vllm-project/vllm#3567)

A server lets a language model answer only in a given format. As soon as requests use it, the rate of tokens falls to a
part of what it was, although the GPU's cache is full and its batches are as large as before.

Cause: for each token of each request the host makes a list of the tokens that may follow, then a tensor of that list
and a mask of the tensor, thousands of integers one by one; the GPU waits for the masks.
Line: allowed_tokens_listed_for_every_token.py:mask_for
Remedy: the mask of each state of the grammar is made once and lies on the GPU; a token only picks its row.
"""
import random

import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Grammar:
    """An automaton: what may follow in each state, and the state after it."""

    def __init__(self, states, words):
        draw = random.Random(0)
        self.states, self.words = states, words
        self.allowed = [set(draw.sample(range(words), draw.randint(words // 32, words // 8))) for _ in range(states)]

    def follows(self, state):
        return sorted(self.allowed[state])

    def after(self, state, word):
        return (31 * state + word) % self.states


def mask_for(grammar, states, device):
    """Zero for the words that may follow, minus infinity for all others, of each request."""
    mask = torch.full((len(states), grammar.words), -torch.inf)
    for row, state in zip(mask, states):
        row[torch.tensor(grammar.follows(state))] = 0
    return (mask.pin_memory() if device.type == "cuda" else mask).to(device, non_blocking=True)


class Layer(nn.Module):
    def __init__(self, width, heads, requests, room):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.register_buffer("kept", torch.zeros(2, requests, heads, room, width // heads))

    def forward(self, x, at, past):
        q, k, v = self.mixed(self.norms[0](x)).view(len(x), 3, self.heads, 1, -1).unbind(dim=1)
        self.kept[0].index_copy_(2, at, k)
        self.kept[1].index_copy_(2, at, v)
        x = x + self.out(F.scaled_dot_product_attention(q, *self.kept, attn_mask=past).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    def __init__(self, words, width, layers, heads, requests, room):
        super().__init__()
        self.enter, self.leave = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Layer(width, heads, requests, room) for _ in range(layers))
        self.register_buffer("places", torch.arange(room))

    def forward(self, tokens, at):
        past = torch.zeros(len(self.places), device=at.device, dtype=self.leave.weight.dtype)
        past = past.masked_fill(self.places > at, -torch.inf)[None, None, None]
        x = self.enter(tokens)
        for layer in self.layers:
            x = layer(x, at, past)
        return self.leave(x).float()


@torch.no_grad()
def main():
    loop = blind.Loop("allowed_tokens_listed_for_every_token", "host", steps=300)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    requests, words, states = loop.size(16, 2), loop.size(32_000, 64), loop.size(48, 4)
    grammar = Grammar(states, words)
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32)
        model = Decoder(words, loop.size(4096, 16), loop.size(24, 1), loop.size(32, 2), requests, loop.size(512, 16))
        torch.set_default_dtype(torch.float32)
        tokens, at = torch.zeros(requests, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    scores = torch.zeros(requests, words, device=device)
    decode = training.recorded(lambda: scores.copy_(model(tokens, at)), device)
    masks = mask_for(grammar, range(states), device)
    now = [row % states for row in range(requests)]

    def step(i):
        nonlocal now
        at.fill_(i % len(model.places))
        decode()
        mask = mask_for(grammar, now, device) if loop.planted else masks[torch.tensor(now).to(device)]
        tokens.copy_(torch.multinomial((scores + mask).softmax(dim=-1), 1)[:, 0])
        now = [grammar.after(state, word) for state, word in zip(now, tokens.tolist())]

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
