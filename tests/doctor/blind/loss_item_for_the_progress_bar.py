# SPDX-License-Identifier: Apache-2.0
"""https://github.com/meta-pytorch/torchtune/pull/522

The trace of a fine-tuning run shows tens of milliseconds of stream synchronisation in every step, and the GPU has
nothing to do right after each of them although the next batch is ready to be tokenised.

Cause: `loss.item()` for the progress bar drains the queue each step; the tokeniser then runs while the GPU is idle.
Line: loss_item_for_the_progress_bar.py:step
Remedy: add the losses up on the GPU and read the sum every 50 steps, so the tokeniser runs beside the GPU's work.
"""
import re
import time

import numpy as np
import torch
from torch import nn

import blind

SYLLABLES = "ka lo mi re tu san ver pol din gar".split()


def make_text(words, seed):
    rng = np.random.default_rng(seed)
    return " ".join("".join(SYLLABLES[i] for i in rng.integers(0, 10, size=3)) for _ in range(words))


def tokenise(text, vocabulary, tokens):
    """A word tokeniser as small projects have it: a regular expression and a dictionary that grows."""
    ids = []
    for word in re.findall(r"\w+", text):
        ids.append(vocabulary.setdefault(word, len(vocabulary) % 4000))
    ids = np.asarray(ids, dtype=np.int64)
    return torch.from_numpy(np.resize(ids, tokens))


class Decoder(nn.Module):
    def __init__(self, width, layers, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    loop = blind.Loop("loss_item_for_the_progress_bar", "sync", steps=220)
    device = loop.device()
    torch.manual_seed(0)
    batch = loop.size(2, 1) if loop.variant == "healthy" else 1
    tokens = loop.size(4096, 32)
    model = Decoder(loop.size(1024, 64), loop.size(24, 2), 4096).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    texts = [make_text(loop.size(50000, 200), seed) for seed in range(4)]
    vocabulary = {}
    running = torch.zeros((), device=device)
    shown = []

    def step(i):
        begin = time.perf_counter()
        ids = tokenise(texts[i % 4], vocabulary, batch * tokens).view(batch, tokens)
        if loop.planted:  # the queue is empty since the last item(): the GPU waits for the tokeniser
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
        if device.type == "cuda":
            ids = ids.pin_memory()
        ids = ids.to(device, non_blocking=True)
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if loop.planted:
            shown.append(loss.item())
        else:
            running.add_(loss.detach())
            if i % 50 == 49:
                shown.append(running.item() / 50)
                running.zero_()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
