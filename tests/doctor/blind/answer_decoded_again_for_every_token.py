# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/pull/32396 (also oobabooga/textgen#4814, mzau/mlx-knife#73)

When I watch the text appear while it is generated, it takes longer than when I wait for the end, and the longer the
text gets, the more slowly it goes on. With a very long context the difference is large.

Cause: with each new token the streamer decodes all tokens since the last line break, to find what text has been added;
the model waits for that, as the next token is asked for only afterwards.
Line: answer_decoded_again_for_every_token.py:step (its call of the library's put).
Remedy: only the new token is decoded, and its text is appended.
"""
import os
import random
import string

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Layer(nn.Module):
    """One layer of a decoder, with room for the keys and values of a whole conversation."""

    def __init__(self, width, heads, room):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("kept", torch.zeros(2, 1, heads, room, width // heads))

    def forward(self, x, at):
        q, k, v = self.mixed(self.norms[0](x)).view(3, 1, self.heads, 1, -1)
        self.kept[0, :, :, at], self.kept[1, :, :, at] = k[:, :, 0], v[:, :, 0]
        mixed = F.scaled_dot_product_attention(q, self.kept[0, :, :, :at + 1], self.kept[1, :, :, :at + 1])
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    def __init__(self, words, width, layers, heads, room):
        super().__init__()
        self.enter, self.leave = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Layer(width, heads, room) for _ in range(layers))

    def forward(self, token, at):
        x = self.enter(token)
        for layer in self.layers:
            x = layer(x, at)
        return self.leave(x).float()


def make_tokenizer(words):
    """A tokenizer that has learnt made-up words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    draw = random.Random(0)
    known = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9))) for _ in range(3000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    bytes_known = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=words, initial_alphabet=bytes_known, show_progress=False)
    tokenizer.train_from_iterator([" ".join(draw.choices(known, k=200)) for _ in range(100)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@torch.no_grad()
def main():
    loop = blind.Loop("answer_decoded_again_for_every_token", "growth", steps=2000)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    try:
        from transformers import TextStreamer
    except ImportError:
        raise SystemExit(f"{loop.name}: needs transformers (pip install transformers)")

    class Shown(TextStreamer):
        """Text goes to a list that stands for the screen."""

        def __init__(self, tokenizer):
            super().__init__(tokenizer)
            self.screen = []

        def on_finalized_text(self, text, stream_end=False):
            self.screen.append(text)

    class Appended(Shown):
        def put(self, value):
            self.on_finalized_text(self.tokenizer.decode(value.flatten().tolist()))

    torch.manual_seed(0)
    tokenizer = make_tokenizer(4000)
    prompt, words = loop.size(2048, 8), len(tokenizer)
    room = prompt + loop.warm_up + loop.steps + 1
    with torch.device(device):
        model = Decoder(words, loop.size(1024, 16), loop.size(12, 1), loop.size(16, 2), room)
        model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
        only = torch.zeros(words)  # of the words; single bytes are never said
        only[:300] = -torch.inf
        token = torch.full((1,), 300)
    streamer = (Shown if loop.planted else Appended)(tokenizer)
    streamer.put(torch.randint(300, words, (prompt,)))  # what was said so far; the model knows it already

    def step(i):
        nonlocal token
        scores = model(token, prompt + i) + only
        token = torch.multinomial(scores.softmax(dim=-1), 1)[:, 0]
        streamer.put(token.cpu())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
