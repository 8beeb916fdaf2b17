# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Lightning-AI/torchmetrics/issues/2891 (also AutoNUE/public-code#10, NRCan/geo-deep-learning#136)

Segmentation is validated by the mean overlap of all classes. That number takes longer than the network's answers, even
when everything stays on the GPU, and nobody sees why a few counts should be so slow.

Cause: the counts are read from the GPU one at a time, three for each of the 150 classes, and the host waits for each.
Line: overlap_read_class_by_class.py:mean_overlap
Remedy: the whole table of counts is fetched once, and the overlaps are formed on the host.
Trap: the metric moved to the GPU already; that is what makes each count something to wait for.
"""
import numpy as np
import torch
from torch import nn

import blind
import training

PATCH = 8


def table_of_counts(found, truth, classes):
    """How often each class (row) has been taken for each class (column)."""
    pairs = (truth * classes + found).flatten()
    counts = torch.zeros(classes**2, device=found.device)
    return counts.index_add_(0, pairs, torch.ones_like(pairs, dtype=counts.dtype)).view(classes, classes)


def mean_overlap(counts):
    overlaps = []
    for c in range(len(counts)):
        both = counts[c, c].item()
        either = counts[c].sum().item() + counts[:, c].sum().item() - both
        if either > 0:
            overlaps.append(both / either)
    return sum(overlaps) / len(overlaps)


def mean_overlap_at_once(counts):
    counts = counts.cpu().numpy()
    both = np.diag(counts)
    either = counts.sum(axis=0) + counts.sum(axis=1) - both
    return float((both[either > 0] / either[either > 0]).mean())


class Segmenter(nn.Module):
    """The class of each patch of an image."""

    def __init__(self, width, classes):
        super().__init__()
        self.enter = nn.Linear(3 * PATCH**2, width)
        self.body, self.leave = training.WideNetwork(width, width, width, groups=3), nn.Linear(width, classes)

    def forward(self, images):
        count, side = len(images), images.shape[-1] // PATCH
        rows = images.view(count, 3, side, PATCH, side, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(count, side**2, -1)
        return self.leave(self.body(self.enter(rows)))


@torch.no_grad()
def main():
    loop = blind.Loop("overlap_read_class_by_class", "sync")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    images, side, classes = loop.size(8, 2), loop.size(512, 32), loop.size(150, 5)
    with torch.device(device):
        model = Segmenter(loop.size(2048, 16), classes).to(torch.bfloat16)
        batches = [(torch.randn(images, 3, side, side, dtype=torch.bfloat16),
                    torch.randint(0, classes, (images, (side // PATCH)**2))) for _ in range(4)]
    overlap = mean_overlap if loop.planted else mean_overlap_at_once
    values = []

    def step(i):
        pixels, truth = batches[i % len(batches)]
        found = model(pixels).argmax(dim=-1)
        values.append(overlap(table_of_counts(found, truth, classes)))

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
