# SPDX-License-Identifier: Apache-2.0
"""https://github.com/KevinMusgrave/pytorch-metric-learning/issues/192 (also issues/279 there, OML-Team#214)

With a triplet loss a training became five times slower than without it. One triplet for each anchor is enough; the loss
itself is a few small tensors, and the GPU is a fast one.

Cause: for each anchor of the batch NumPy looks for all items with its label and for all others, and draws one of each,
on the host, while the GPU has long finished the embeddings.
Line: triplets_drawn_anchor_by_anchor.py:draw_triplets
Remedy: one item of either kind is drawn for all anchors together, on the GPU, from random numbers for all pairs.
Trap: the loss function is blamed, which takes next to nothing.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


def draw_triplets(labels, random):
    """For each anchor an item of the same label and one of another."""
    anchors, likes, others = [], [], []
    for k, label in enumerate(labels):
        same = labels == label
        other = np.where(~same)[0]
        same[k] = False
        like = np.where(same)[0]
        if len(like) and len(other):
            anchors.append(k)
            likes.append(random.choice(like))
            others.append(random.choice(other))
    return np.array([anchors, likes, others])


def draw_triplets_at_once(labels):
    same = labels[:, None] == labels
    dice = torch.rand(same.shape, device=labels.device)
    own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    likes = dice.masked_fill(~same | own, -1).argmax(dim=1)
    others = dice.masked_fill(same, -1).argmax(dim=1)
    return torch.stack([torch.arange(len(labels), device=labels.device), likes, others])


class Embedder(nn.Module):
    """A direction for each image, from its patches."""

    def __init__(self, inputs, width, outputs):
        super().__init__()
        self.body, self.leave = training.WideNetwork(inputs, width, width), nn.Linear(width, outputs)

    def forward(self, patches):
        return F.normalize(self.leave(self.body(patches).mean(dim=1)).float(), dim=1)


def main():
    loop = blind.Loop("triplets_drawn_anchor_by_anchor", "host")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    images, patches, inputs, labels = loop.size(768, 12), loop.size(40, 4), loop.size(768, 8), loop.size(64, 3)
    with torch.device(device):
        model = Embedder(inputs, loop.size(2048, 16), loop.size(128, 8)).to(torch.bfloat16)
        pixels = torch.randn(4, images, patches, inputs, dtype=torch.bfloat16)
    known = torch.arange(images) % labels
    known = torch.stack([known[torch.randperm(images)] for _ in range(4)])
    batches = list(zip(pixels, known.numpy(), known.to(device)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(i):
        seen, host_labels, device_labels = batches[i % len(batches)]
        found = model(seen)
        if loop.planted:
            drawn = torch.from_numpy(draw_triplets(host_labels, random))
            drawn = (drawn.pin_memory() if device.type == "cuda" else drawn).to(device, non_blocking=True)
        else:
            drawn = draw_triplets_at_once(device_labels)
        anchors, likes, others = found[drawn]
        loss = F.relu((anchors - likes).square().sum(1) - (anchors - others).square().sum(1) + 0.2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
