# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jitsi/jiwer/issues/68 (also NVIDIA-NeMo/Speech#692)

Counting word errors takes far longer with one library than with another, though both use the same distance and differ
in what they do before it only; in my training, where the word error rate is shown for each batch, that is felt.

Cause: the edit distance of each transcript is computed in pure Python, cell by cell, after every step, while the GPU
waits for the next one.
Line: word_errors_counted_in_python.py:edits
Remedy: word errors of every hundredth batch.
"""
import random

import torch
from torch import nn

import blind
import training


def make_words(count):
    rng = random.Random(0)
    return ["".join(rng.choices("aeioumnprst", k=rng.randint(2, 8))) for _ in range(count)]


def edits(said, heard):
    """Levenshtein's distance of two lists of words."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            change = before if word == other else 1 + min(before, row[j], row[j - 1])
            before, row[j] = row[j], change
    return row[-1]


def error_rate(words, references, answers):
    wrong = total = 0
    for reference, answer in zip(references, answers):
        said, heard = [words[k] for k in reference], [words[k] for k in answer]
        wrong += edits(said, heard)
        total += len(said)
    return wrong / total


def main():
    loop = blind.Loop("word_errors_counted_in_python", "host", steps=240)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    vocabulary, width = loop.size(4000, 20), loop.size(4096, 16)
    utterances, length = loop.size(28, 2), loop.size(48, 4)  # what is shown, of a batch of more
    words = make_words(vocabulary)
    with torch.device(device):
        body, _ = training.make_model(loop.size(20, 1), width, device)
        model = nn.Sequential(body, nn.Linear(width, vocabulary)).to(torch.bfloat16)
        frames = torch.randn(loop.size(96, 2) * length, width).to(torch.bfloat16)
        spoken = torch.randint(0, vocabulary, (len(frames),))
    references = spoken.view(-1, length)[:utterances].tolist()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    gaps, every, rates = training.GpuGaps(loop, device), 1 if loop.planted else 100, []

    def step(i):
        gaps.begin()
        logits = model(frames).float()
        loss = nn.functional.cross_entropy(logits, spoken)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        best = logits.detach()[:utterances * length].argmax(dim=1).view(utterances, length)
        gaps.finish()
        if i % every == every - 1:
            rates.append(error_rate(words, references, best.tolist()))

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
