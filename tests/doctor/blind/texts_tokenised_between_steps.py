# SPDX-License-Identifier: Apache-2.0
"""https://github.com/OpenNMT/OpenNMT-tf/issues/799 (also grammarly/gector#143)

With tokenisation during training the throughput is lower than expected, and the usage of the GPU goes down to zero
again and again; a colleague whose text needs no subwords trains the same model several times faster.

Cause: the training process itself splits each batch into subwords, in one thread, before it launches the step.
Line: texts_tokenised_between_steps.py:tokenise
Remedy: tokenise the text once, before training.
"""
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn

import blind
import training

SYLLABLES = "ka lo mi re tu san ver pol din gar".split()


def make_text(words, seed):
    rng = np.random.default_rng(seed)
    return " ".join("".join(SYLLABLES[i] for i in rng.integers(0, 10, size=rng.integers(1, 5))) for _ in range(words))


def make_tokenizer(texts, pieces):
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=pieces, special_tokens=["?"], show_progress=False))
    return tokenizer


def tokenise(tokenizer, texts, length):
    return torch.tensor([(tokenizer.encode(text).ids + [0] * length)[:length] for text in texts])


def main():
    loop = blind.Loop("texts_tokenised_between_steps", "host", steps=200)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    batch, length, pieces = loop.size(16, 2), loop.size(256, 8), loop.size(2000, 60)
    words = loop.size(400, 20)
    tokenizer = make_tokenizer([make_text(words, seed) for seed in range(loop.size(40, 4))], pieces)
    texts = [[make_text(words, 1000 * part + k) for k in range(batch)] for part in range(4)]
    ready = [tokenise(tokenizer, part, length).to(device) for part in texts]
    width = loop.size(4096, 16)
    with torch.device(device):
        body, optimizer = training.make_model(loop.size(16, 1), width, device)
        model = nn.Sequential(nn.Embedding(pieces, width), body)
    model.to(torch.bfloat16)
    model[0].weight.requires_grad = False  # word vectors from elsewhere
    gaps = training.GpuGaps(loop, device)

    def step(i):
        ids = tokenise(tokenizer, texts[i % 4], length) if loop.planted else ready[i % 4]
        gaps.begin()
        training.train(model, optimizer, ids.to(device, non_blocking=True))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
