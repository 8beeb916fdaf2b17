# SPDX-License-Identifier: Apache-2.0
"""github.com/jakeret/tf_unet/issues/102.

The first epoch of my segmentation network is quick; each later one is slower, and the last takes more than three
times as long although nothing in the data has changed.

Cause: every step registers one more piece of work that all later steps run again, so the host needs ever longer.
Line: metric_hooks_pile_up.py:watch (it registers) and running_mean (what runs again).
Remedy: `fixed` registers once.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


def watch(layer, means):
    """Keeps running means of what leaves `layer`."""
    mean = torch.zeros((), device=layer.weight.device)

    def running_mean(module, inputs, output):
        mean.mul_(0.99).add_(output.detach()[0, 0, 0, 0], alpha=0.01)

    means.append(mean)
    return layer.register_forward_hook(running_mean)


class Segmenter(nn.Module):
    def __init__(self, channels, layers, classes):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.middle = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers))
        self.last = nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        x = F.relu(self.first(x))
        for conv in self.middle:
            x = x + F.relu(conv(x))
        return self.last(x)


def main():
    loop = blind.Loop("metric_hooks_pile_up", "growth", steps=700)
    device = loop.device()
    torch.manual_seed(0)
    channels, layers, batch = loop.size(128, 8), loop.size(4, 1), loop.size(128, 1)
    side, classes = loop.size(64, 16), 4
    model = Segmenter(channels, layers, classes).to(device, memory_format=torch.channels_last)
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.randn(4, batch, 3, side, side, device=device, dtype=torch.bfloat16)
    labels = torch.randint(0, classes, (batch, side, side), device=device)
    torch.backends.cudnn.benchmark = True
    means = []

    def step(i):
        if loop.planted or (loop.variant == "fixed" and i == 0):
            watch(model.first, means)
        loss = F.cross_entropy(model(images[i % 4]).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
