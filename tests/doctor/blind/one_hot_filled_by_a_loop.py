# SPDX-License-Identifier: Apache-2.0
"""https://github.com/riverback/pytorch_attribution/issues/1

Attribution maps come slower the larger the batch is made, as if the images were still explained one after the other.

Cause: the one-hot matrix is filled in a loop over the batch; the label of each image is on the GPU, so each turn of the
loop waits until the host has read it, then launches one tiny kernel.
Line: one_hot_filled_by_a_loop.py:encode_by_loop
Remedy: one scatter, with the labels as its indices.
"""
import torch
from torch import nn

import blind
import training


def encode_by_loop(labels, classes):
    one_hot = torch.zeros(len(labels), classes, device=labels.device)
    for i in range(len(labels)):
        one_hot[i][labels[i]] = 1
    return one_hot


def encode_at_once(labels, classes):
    return torch.zeros(len(labels), classes, device=labels.device).scatter_(1, labels[:, None], 1)


def main():
    loop = blind.Loop("one_hot_filled_by_a_loop", "sync", steps=240)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, patches, classes, width = loop.size(256, 4), loop.size(32, 2), loop.size(1000, 10), loop.size(4096, 16)
    with torch.device(device):
        body, _ = training.make_model(loop.size(8, 1), width, device)
        model = nn.Sequential(body, nn.Linear(width, classes)).to(torch.bfloat16).requires_grad_(False)
        images = torch.randn(batch * patches, width).to(torch.bfloat16)
        labels = torch.randint(0, classes, (batch,))
    encode = encode_by_loop if loop.planted else encode_at_once
    span = training.GpuSpan(loop, device)
    blind.take_gpu()
    span.due = span.queued(lambda: encode_at_once(labels, classes))

    def step(i):
        x = images.detach().requires_grad_()
        logits = model(x).view(batch, patches, classes).float().mean(dim=1)
        span.begin()
        one_hot = encode(labels, classes)
        span.end()
        logits.backward(one_hot)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
