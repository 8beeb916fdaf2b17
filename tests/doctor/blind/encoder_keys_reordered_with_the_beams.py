# SPDX-License-Identifier: Apache-2.0
"""https://github.com/facebookresearch/fairseq/issues/1851 (measured again in facebookresearch/fairseq2#258)

Summaries are written with beam search, and the GPU could do more. In the profile, bringing the states of the beams into
their new order takes as long as the model does, though most of that seems needless.

Cause: after each token the cached keys and values of every layer are copied row by row into the order of the surviving
beams, also those of the encoder's output, which are by far the largest and the same for all beams of a text.
Line: encoder_keys_reordered_with_the_beams.py:reorder (of Layer).
Remedy: only the keys and values of the words written so far are reordered.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Layer(nn.Module):
    """A layer of the decoder, for one new token of each beam, with its caches."""

    def __init__(self, width, heads, texts, beams, length, source, everything):
        super().__init__()
        self.heads, self.everything = heads, everything
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.asked, self.told = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.written = torch.randn(2, texts * beams, heads, length, width // heads)
        read = torch.randn(2, texts, heads, source, width // heads)
        self.read = [part.repeat_interleave(beams, dim=0, output_size=texts * beams) for part in read]

    def forward(self, x, at):
        rows, width = x.shape
        q, k, v = self.mixed(self.norms[0](x)).view(rows, 3, self.heads, 1, -1).unbind(1)
        self.written[0, :, :, at:at + 1], self.written[1, :, :, at:at + 1] = k, v
        keys, values = self.written[:, :, :, :at + 1]
        x = x + self.out(F.scaled_dot_product_attention(q, keys, values).reshape(rows, width))
        q = self.asked(self.norms[1](x)).view(rows, self.heads, 1, -1)
        x = x + self.told(F.scaled_dot_product_attention(q, *self.read).reshape(rows, width))
        return x + self.down(F.gelu(self.up(self.norms[2](x))))

    def reorder(self, order):
        self.written = self.written.index_select(1, order)
        if self.everything:
            self.read = [part.index_select(0, order) for part in self.read]


def main():
    loop = blind.Loop("encoder_keys_reordered_with_the_beams", "memory", steps=120)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    texts, beams, width, words = loop.size(64, 2), loop.size(4, 2), loop.size(1024, 16), loop.size(32000, 40)
    source, start, tokens = loop.size(768, 10), loop.size(24, 2), loop.size(8, 2)
    dtype, rows = torch.bfloat16 if device.type == "cuda" else torch.float32, texts * beams
    torch.set_default_dtype(dtype)
    with torch.device(device):
        sizes = width, loop.size(16, 2), texts, beams, start + tokens, source
        layers = [Layer(*sizes, everything=loop.planted) for _ in range(loop.size(6, 1))]
        embedding = nn.Embedding(words, width)
        first = torch.randint(words, (rows,))
        offsets = beams * torch.arange(texts)[:, None]

    @torch.inference_mode()
    def step(i):
        """Some more words of every text."""
        chosen, scores = first, torch.zeros(texts, beams, 1, device=device, dtype=torch.float32)
        for at in range(start, start + tokens):
            x = embedding(chosen)
            for layer in layers:
                x = layer(x, at)
            logits = F.linear(x, embedding.weight).float().log_softmax(dim=1).view(texts, beams, words)
            best, picked = (scores + logits).flatten(1).topk(beams, dim=1)
            scores, chosen = best[:, :, None], (picked % words).flatten()
            order = (offsets + picked // words).flatten()
            for layer in layers:
                layer.reorder(order)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
