# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/issues/8596

Generating with a penalty on tokens that were already said is extremely slow, and the longer the text, the slower. It
gets fast when the penalty is left out. The function that applies it consists of two loops, one inside the other.

Cause: for each row, and in it for each token said before, the host looks at one score on the GPU to see whether it is
negative, waits for the answer, and only then changes that one score.
Line: repeated_tokens_penalised_in_nested_loops.py:penalise
Remedy: the scores of all tokens said before are gathered, changed and put back with four operations on the GPU.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training

PENALTY = 1.3


def penalise(scores, said):
    for row in range(scores.shape[0]):
        for token in set(said[row].tolist()):
            if scores[row, token] < 0:
                scores[row, token] *= PENALTY
            else:
                scores[row, token] /= PENALTY
    return scores


def penalise_at_once(scores, said):
    chosen = scores.gather(1, said)
    chosen = torch.where(chosen < 0, chosen * PENALTY, chosen / PENALTY)
    return scores.scatter_(1, said, chosen)


class Layer(nn.Module):
    """One layer of a decoder, with room for the keys and values of a whole answer."""

    def __init__(self, rows, width, heads, room):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("kept", torch.zeros(2, rows, heads, room, width // heads))

    def forward(self, x, at):
        q, k, v = self.mixed(self.norms[0](x)).view(x.shape[0], 3, self.heads, 1, -1).unbind(1)
        self.kept[0, :, :, at], self.kept[1, :, :, at] = k[:, :, 0], v[:, :, 0]
        mixed = F.scaled_dot_product_attention(q, self.kept[0, :, :, :at + 1], self.kept[1, :, :, :at + 1])
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    def __init__(self, words, rows, width, layers, heads, room):
        super().__init__()
        self.enter, self.leave = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Layer(rows, width, heads, room) for _ in range(layers))

    def forward(self, tokens, at):
        x = self.enter(tokens)
        for layer in self.layers:
            x = layer(x, at)
        return self.leave(x).float()


@torch.no_grad()
def main():
    loop = blind.Loop("repeated_tokens_penalised_in_nested_loops", "sync", steps=800)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, words, room = loop.size(4, 2), loop.size(32000, 50), loop.size(96, 8)
    with torch.device(device):
        model = Decoder(words, rows, loop.size(2048, 16), loop.size(16, 1), loop.size(16, 2), room)
        model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
        said = torch.randint(words, (rows, room))
    prompt = room // 3  # of each answer, these tokens are given
    punish = penalise if loop.planted else penalise_at_once
    span = training.GpuSpan(loop, device)

    def step(i):
        at = prompt + i % (room - prompt - 1)  # when an answer is full, the next one starts over it
        scores = model(said[:, at], at)
        span.begin()
        scores = punish(scores, said[:, :at + 1])
        span.end()
        said[:, at + 1] = torch.multinomial(scores.softmax(dim=-1), 1)[:, 0]

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
