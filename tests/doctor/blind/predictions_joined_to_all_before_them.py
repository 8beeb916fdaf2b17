# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/pull/9746 (also keras-team/keras#23305, ellisdg/3DUnetCNN#70)

Predicting for a large data set starts fast and becomes slower with each batch, until it seems to stand still. With ten
thousand texts or fewer nobody notices.

Cause: the answers to each batch are joined to those to all batches before it; NumPy copies all of them into a new
array each time, while the GPU waits.
Line: predictions_joined_to_all_before_them.py:keep
Remedy: the answers go to a list, which is joined once at the end.
"""
import numpy as np
import torch

import blind
import training


class Joined:
    """The answers so far, as one array."""

    def __init__(self):
        self.all = None

    def keep(self, answers):
        self.all = answers if self.all is None else np.concatenate((self.all, answers), axis=0)

    def result(self):
        return self.all


class Listed:
    def __init__(self):
        self.parts = []

    def keep(self, answers):
        self.parts.append(answers)

    def result(self):
        return np.concatenate(self.parts, axis=0)


@torch.no_grad()
def main():
    loop = blind.Loop("predictions_joined_to_all_before_them", "growth", steps=300)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    texts, words, width, labels = loop.size(128, 2), loop.size(64, 4), loop.size(4096, 16), loop.size(4, 3)
    with torch.device(device):
        model = training.WideNetwork(width, width, width, groups=2).to(torch.bfloat16)
        leave = torch.nn.Linear(width, labels).to(torch.bfloat16)
        batches = list(torch.randn(4, texts, words, width, dtype=torch.bfloat16))
    answers = (Joined if loop.planted else Listed)()

    def step(i):
        answers.keep(leave(model(batches[i % len(batches)])).float().cpu().numpy())

    loop.at_end.append(answers.result)
    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
