# SPDX-License-Identifier: Apache-2.0
"""github.com/AnswerDotAI/ModernBERT#236

Pre-training reaches a third of the speed others report, and a faster GPU gives exactly the same number.

Cause: the workers split text into subwords by a merge loop in pure Python, slower than the GPU takes the batches
Line: text_tokenised_on_the_fly_in_python.py:merge_pairs (in the workers)
Remedy: tokenise once beforehand and read token numbers from a memory-mapped file
"""
import os
import random
import tempfile

import numpy
import torch

import blind
import training


def merge_pairs(word, ranks):
    """Byte-pair encoding of one word: joins the best-ranked neighbours until none is left."""
    parts = list(word)
    while len(parts) > 1:
        pairs = [(ranks.get(parts[i] + parts[i + 1], 1 << 30), i) for i in range(len(parts) - 1)]
        rank, i = min(pairs)
        if rank == 1 << 30:
            break
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


class Corpus(torch.utils.data.Dataset):
    """Documents as text, or as rows of token numbers in a file."""

    def __init__(self, samples, documents, length, path):
        rng = random.Random(7)
        letters = "etaoinshrdlu"
        self.ranks = {a + b: i for i, (a, b) in enumerate((a, b) for a in letters for b in letters if a < b)}
        words = ["".join(rng.choices(letters, k=rng.randint(3, 9))) for _ in range(5000)]
        self.texts = [" ".join(rng.choices(words, k=length)) for _ in range(documents)]
        self.samples, self.length, self.tokens = samples, length, None
        if path:
            rows = numpy.stack([self.tokenise(text) for text in self.texts])
            rows.tofile(path)
            self.tokens = numpy.memmap(path, dtype=numpy.int64, mode="r", shape=rows.shape)

    def tokenise(self, text):
        parts = [part for word in text.split() for part in merge_pairs(word, self.ranks)]
        ids = [1000 + self.ranks.get(part, ord(part[0])) for part in parts]
        return numpy.array(ids[:self.length], dtype=numpy.int64)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        index %= len(self.texts)
        ids = self.tokenise(self.texts[index]) if self.tokens is None else numpy.array(self.tokens[index])
        return torch.from_numpy(ids)


def main():
    loop = blind.Loop("text_tokenised_on_the_fly_in_python", "input", steps=400)
    device = loop.device()
    batch, length, width = loop.size(64, 2), loop.size(256, 8), loop.size(1024, 32)
    layers = loop.size(16 if loop.variant == "healthy" else 6, 1)
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(width, loop.size(16, 2), 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(2000, width), torch.nn.TransformerEncoder(block, layers),
                                torch.nn.Linear(width, 2000))
    model = model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps = training.GpuGaps(loop, device)

    def step(_):
        tokens = next(batches)
        gaps.begin()
        tokens = tokens.to(device, non_blocking=True)
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    with tempfile.TemporaryDirectory() as folder:
        path = None if loop.planted else os.path.join(folder, "tokens")
        data = Corpus((loop.steps + loop.warm_up + 1) * batch, loop.size(512, 8), length, path)
        loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(2, 1),
                                             pin_memory=device.type == "cuda")
        batches = iter(loader)
        loop.run(step, blind.wait_for(device))
        del batches


if __name__ == "__main__":
    main()
