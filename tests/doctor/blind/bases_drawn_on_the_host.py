# SPDX-License-Identifier: Apache-2.0
"""https://github.com/open-mmlab/mmsegmentation/issues/3231 (the same elsewhere: ai-dynamo/aiconfigurator#51)

A segmentation head factorises its feature maps, beginning from random bases. They are made and then moved to the GPU;
a small benchmark says that making them there would be two thousand times as fast.

Cause: the random numbers of each forward pass are drawn on the host, by one thread, one after the other, then copied
from pageable memory; the GPU has long finished what was launched before and waits for them.
Line: bases_drawn_on_the_host.py:first_bases (called by the heads).
Remedy: torch.rand gets the device, so that the GPU draws them.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


def first_bases(rows, depth, rank, device, on_host):
    bases = torch.rand(rows, depth, rank).to(device) if on_host else torch.rand(rows, depth, rank, device=device)
    return F.normalize(bases, dim=1)


class Head(nn.Module):
    """Rebuilds the feature maps from a few non-negative bases, which some rounds of multiplicative updates find."""

    def __init__(self, width, rank, classes, rounds, on_host):
        super().__init__()
        self.rank, self.rounds, self.on_host = rank, rounds, on_host
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.classes = nn.Conv2d(width, classes, 1)

    def factorised(self, x):
        bases = first_bases(len(x), x.shape[1], self.rank, x.device, self.on_host).to(x.dtype)
        with torch.no_grad():
            weights = torch.softmax(x.mT @ bases, dim=-1)
            for _ in range(self.rounds):
                weights = weights * (x.mT @ bases) / (weights @ (bases.mT @ bases) + 1e-4)
                bases = bases * (x @ weights) / (bases @ (weights.mT @ weights) + 1e-4)
        weights = weights * (x.mT @ bases) / (weights @ (bases.mT @ bases) + 1e-4)
        return bases @ weights.mT

    def forward(self, x):
        features = torch.relu(self.enter(x))
        rebuilt = self.factorised(features.flatten(2)).view_as(features)
        return self.classes(torch.relu(x + self.leave(rebuilt)))


class Segmenter(nn.Module):
    """A plain encoder, a head on its last feature maps, and one on those before them, for an auxiliary loss."""

    def __init__(self, width, layers, rank, classes, rounds, on_host):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.stages = nn.ModuleList(
            nn.Sequential(*[part for _ in range(layers) for part in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())])
            for _ in range(2))
        self.heads = nn.ModuleList(Head(width, rank, classes, rounds, on_host) for _ in range(2))

    def forward(self, images):
        x, found = self.patches(images), []
        for stage, head in zip(self.stages, self.heads):
            x = stage(x)
            found.append(head(x))
        return found


def main():
    loop = blind.Loop("bases_drawn_on_the_host", "host", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 200)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, side, width, classes = loop.size(48, 2), loop.size(128, 16), loop.size(512, 8), loop.size(150, 3)
    model = Segmenter(width, loop.size(2, 1), loop.size(64, 2), classes, loop.size(6, 1), loop.planted).to(device)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    with torch.device(device):
        images = [torch.randn(rows, 3, side, side).to(memory_format=torch.channels_last) for _ in range(4)]
        labels = torch.randint(classes, (rows, side // 4, side // 4))

    def step(i):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            last, before = reversed(model(images[i % len(images)]))
        loss = F.cross_entropy(last.float(), labels) + 0.4 * F.cross_entropy(before.float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
