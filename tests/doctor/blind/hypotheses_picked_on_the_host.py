# SPDX-License-Identifier: Apache-2.0
"""https://github.com/awslabs/sockeye/pull/239

Translation with a beam gets no faster on the new GPU, the less so the larger the beam and the batch are; the decoder
itself takes a small part of the time.

Cause: the scores of all continuations are copied to the host in every step, NumPy picks the best of them there, and
the GPU waits for what it picked.
Line: hypotheses_picked_on_the_host.py:pick_on_host
Remedy: topk on the GPU, where the scores are.
"""
import numpy as np
import torch
from torch import nn

import blind
import training


def pick_on_host(folded, beam):
    """(scores, flat indices) of the best `beam` of each row, as tensors on the GPU."""
    scores = folded.cpu().numpy()
    best = np.argpartition(-scores, beam, axis=1)[:, :beam]
    kept = np.take_along_axis(scores, best, axis=1)
    return torch.from_numpy(kept).to(folded.device), torch.from_numpy(best).to(folded.device)


def pick_on_device(folded, beam):
    return folded.topk(beam, dim=1)


def main():
    loop = blind.Loop("hypotheses_picked_on_the_host", "host", steps=600)
    device = loop.device()
    torch.manual_seed(0)
    sentences, beam, pieces, width = loop.size(128, 2), loop.size(8, 2), loop.size(512, 16), loop.size(4096, 16)
    if loop.variant == "healthy":  # letters, and many sentences: the decoder's products are nearly all of the time
        sentences, pieces, width = loop.size(2048, 2), loop.size(128, 16), loop.size(8192, 16)
        loop.steps = min(loop.steps, 300)
    with torch.device(device):
        if loop.variant == "healthy":
            decoder = training.WideNetwork(width, width, pieces, 2)
        else:
            body, _ = training.make_model(loop.size(40, 1), width, device)
            decoder = nn.Sequential(body, nn.Linear(width, pieces))
        states = torch.randn(pieces, width).to(torch.bfloat16)
        pieces_of = torch.zeros(sentences * beam, dtype=torch.long)
        total = torch.zeros(sentences, beam, 1)
        folded = torch.zeros(sentences, beam * pieces)
    decoder.to(torch.bfloat16)
    pick = pick_on_host if loop.planted else pick_on_device

    @torch.no_grad()
    def score():
        scores = decoder(states[pieces_of]).view(sentences, beam, pieces).float().log_softmax(dim=2)
        folded.copy_((scores + total).view(sentences, beam * pieces))

    def go_on(kept, best):
        total.copy_((kept - kept.amax(dim=1, keepdim=True)).unsqueeze(2))
        pieces_of.copy_((best % pieces).flatten())

    score = training.recorded(score, device)
    span = training.GpuSpan(loop, device)
    blind.take_gpu()
    score()
    span.due = span.queued(lambda: go_on(*pick_on_device(folded, beam)))

    def step(i):
        score()
        span.begin()
        go_on(*pick(folded, beam))  # small kernels, which the host launches ahead only if it does not pick
        span.end()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
