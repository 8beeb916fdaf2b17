# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/issues/26130 (fix in PR#47571; also facebookresearch/fairseq#3582)

Generation that must not repeat three words in a row is slow: by the profile about 90% of the time goes into the
function that finds what would be a repetition. It looks through the whole text for every new token.

Cause: for each token all texts are fetched to the host, where a dictionary of all their n-grams is made in Python, of
which only the entry of the last two tokens is looked up; the GPU waits for the tokens that may not come.
Line: ngrams_collected_again_for_every_token.py:ngrams_of, called by forbid_on_host
Remedy: the last tokens are compared with all places of the text at once, on the GPU.
"""
import torch
from torch import nn

import blind
import training

NGRAM = 3


def ngrams_of(text):
    """For each pair of tokens all that came after it."""
    followers = {}
    for ngram in zip(*(text[k:] for k in range(NGRAM))):
        before = tuple(ngram[:-1])
        followers[before] = followers.get(before, []) + [ngram[-1]]
    return followers


def forbid_on_host(scores, texts, length):
    rows, tokens = [], []
    for row, text in enumerate(texts[:, :length].tolist()):
        banned = ngrams_of(text).get(tuple(text[1 - NGRAM:]), [])
        rows += [row] * len(banned)
        tokens += banned
    if rows:
        scores[torch.tensor(rows, device=scores.device), torch.tensor(tokens, device=scores.device)] = -torch.inf


def forbid_on_device(scores, texts, length):
    text = texts[:, :length]
    windows = text.unfold(1, NGRAM, 1)
    repeated = (windows[..., :-1] == text[:, None, 1 - NGRAM:]).all(dim=2)
    banned = torch.zeros(scores.shape[0], scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    banned.scatter_(1, torch.where(repeated, windows[..., -1], scores.shape[1]), True)  # the rest into one more column
    scores.masked_fill_(banned[:, :-1], -torch.inf)


class Layer(nn.Module):
    """Attention of one token to all before it, whose keys and values lie in tensors of full length."""

    def __init__(self, width, heads, batch, most):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.register_buffer("past", torch.zeros(2, batch, heads, most, width // heads))

    def forward(self, x, at, unseen):
        b, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, 1, c // self.heads).unbind(1)
        self.past.index_copy_(3, at, torch.stack([k, v]))
        weights = (q @ self.past[0].transpose(2, 3)) * (c // self.heads)**-0.5
        weights = torch.softmax(weights + unseen, dim=-1)
        x = x + self.out((weights @ self.past[1]).reshape(b, c))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Decoder(nn.Module):
    def __init__(self, vocabulary, width, heads, depth, batch, most):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(most, width)
        self.layers = nn.ModuleList(Layer(width, heads, batch, most) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, at, unseen):
        x = self.embed(tokens) + self.places(at)
        for layer in self.layers:
            x = layer(x, at, unseen)
        return self.head(x).float()


def main():
    loop = blind.Loop("ngrams_collected_again_for_every_token", "host", steps=320)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 220)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, width, heads, depth = loop.size(96, 2), loop.size(2048, 16), loop.size(16, 2), loop.size(16, 2)
    vocabulary, prompt = loop.size(32768, 24), loop.size(256, 8)
    most = prompt + loop.warm_up + loop.steps + 1
    with torch.device(device):
        model = Decoder(vocabulary, width, heads, depth, batch, most).eval().requires_grad_(False).to(torch.bfloat16)
        texts = torch.randint(0, vocabulary, (batch, most))
        tokens, scores = texts[:, prompt - 1].clone(), torch.zeros(batch, vocabulary)
        at, places = torch.full((1,), prompt - 1), torch.arange(most)
        nothing_hidden = torch.zeros(most, dtype=torch.bfloat16)

    @torch.no_grad()
    def score():
        scores.copy_(model(tokens, at, nothing_hidden.masked_fill(places > at, -torch.inf)))

    @torch.no_grad()
    def go_on(forbid, length):
        """The best token that repeats nothing is the next one."""
        forbid(scores, texts, length)
        tokens.copy_(scores.argmax(dim=1))
        texts[:, length] = tokens
        at.add_(1)

    forbid = forbid_on_host if loop.planted else forbid_on_device
    blind.take_gpu()
    score = training.recorded(score, device)
    span = training.GpuSpan(loop, device)
    span.due = span.queued(lambda: go_on(forbid_on_device, prompt))
    at.fill_(prompt - 1)
    tokens.copy_(texts[:, prompt - 1])

    def step(i):
        score()
        span.begin()
        go_on(forbid, prompt + i)
        span.end()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
