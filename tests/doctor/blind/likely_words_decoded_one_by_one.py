# SPDX-License-Identifier: Apache-2.0
"""https://github.com/vllm-project/vllm/issues/4699 (also vllm-project/vllm#54050, sgl-project/sglang#24447)

As soon as requests ask for the likeliest words with their probabilities, the server makes far fewer tokens per
second; the more words are asked for, the fewer. Ranking the vocabulary on the GPU is suspected.

Cause: the text of each candidate is asked of the tokenizer with a call of its own, twenty for each request and token,
and the next token is computed only afterwards.
Line: likely_words_decoded_one_by_one.py:describe
Remedy: the text of every word is decoded once, at the start, and looked up.
Trap: a quicker ranking on the GPU takes away next to nothing.
"""
import os
import random
import string

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

import blind
import training


def make_tokenizer(words):
    """A tokenizer that has learnt made-up words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    draw = random.Random(0)
    known = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9))) for _ in range(3000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=words, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([" ".join(draw.choices(known, k=200)) for _ in range(100)], trainer)
    return tokenizer


class NextWord(nn.Module):
    def __init__(self, words, width, groups):
        super().__init__()
        self.enter, self.leave = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.body = training.WideNetwork(width, width, width, groups)

    def forward(self, tokens):
        return self.leave(self.body(self.enter(tokens))).float()


def describe(rows, chances, tokenizer, texts):
    """For each request the candidates, as the answer will list them."""
    listed = []
    for row, own in zip(rows, chances):
        listed.append([])
        for word, chance in zip(row, own):
            text = texts[word] if texts else tokenizer.decode([word])
            listed[-1].append({"token": text, "logprob": chance})
    return listed


@torch.no_grad()
def main():
    loop = blind.Loop("likely_words_decoded_one_by_one", "host", steps=300)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    try:
        tokenizer = make_tokenizer(4000)
    except ImportError:
        raise SystemExit(f"{loop.name}: needs tokenizers (pip install tokenizers)")
    torch.manual_seed(0)
    words, requests, likely = tokenizer.get_vocab_size(), loop.size(96, 2), loop.size(20, 3)
    with torch.device(device):
        model = NextWord(words, loop.size(8192, 16), loop.size(16, 1)).to(torch.bfloat16)
        tokens = torch.randint(0, words, (requests,))
    texts = [] if loop.planted else [tokenizer.decode([word]) for word in range(words)]
    answers = []

    def step(i):
        nonlocal tokens
        chances = model(tokens).log_softmax(dim=-1)
        tokens = torch.multinomial(chances.exp(), 1)[:, 0]
        best = chances.topk(likely, dim=-1)
        answers[:] = describe(best.indices.tolist(), best.values.tolist(), tokenizer, texts)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
