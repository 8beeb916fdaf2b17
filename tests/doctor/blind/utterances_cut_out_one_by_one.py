# SPDX-License-Identifier: Apache-2.0
"""https://github.com/speechbrain/speechbrain/issues/53

The loss of a speech recogniser must leave out the frames that only fill a batch up. The function for it goes through
the sentences and cuts each at its own length; with large batches the loss takes as long as the network.

Cause: a slice, a softmax, a look-up and their gradients for each sentence alone, over a thousand kernels of a few
microseconds in each step; the host cannot launch them as fast as the GPU is done with them.
Line: utterances_cut_out_one_by_one.py:loss_of_each
Remedy: one loss over the whole batch, in which the frames that only fill it up are marked and left out.
"""
import torch
import torch.nn.functional as F

import blind
import training

PHONEMES, NONE = 64, -100


def loss_of_each(scores, phonemes, lengths):
    """The mean over sentences of the mean over their frames."""
    losses = []
    for sentence, truth, length in zip(scores, phonemes, lengths):
        losses.append(F.cross_entropy(sentence[:length], truth[:length]))
    return torch.stack(losses).mean()


def loss_of_all(scores, marked, shares):
    """The same; `marked` has NONE where a sentence is over, `shares` what a frame of each sentence counts."""
    losses = F.cross_entropy(scores.flatten(0, 1), marked.flatten(), ignore_index=NONE, reduction="none")
    return (losses.view(marked.shape) * shares).sum()


def main():
    loop = blind.Loop("utterances_cut_out_one_by_one", "launch")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    sentences, longest, mels, width = loop.size(160, 4), loop.size(200, 12), loop.size(80, 8), loop.size(2048, 16)
    network, optimizer = training.make_wide(mels, width, device, groups=2)
    batches = []
    for _ in range(3):
        lengths = torch.randint(longest // 2, longest + 1, (sentences,))
        phonemes = torch.randint(0, PHONEMES, (sentences, longest))
        marked = phonemes.masked_fill(torch.arange(longest) >= lengths[:, None], NONE)
        shares = 1 / (sentences * lengths[:, None].float())
        frames = torch.randn(sentences, longest, mels).to(device, torch.bfloat16)
        batches.append((frames, phonemes.to(device), lengths.tolist(), marked.to(device), shares.to(device)))

    def step(i):
        frames, phonemes, lengths, marked, shares = batches[i % len(batches)]
        scores = network(frames).float()
        loss = loss_of_each(scores, phonemes, lengths) if loop.planted else loss_of_all(scores, marked, shares)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
