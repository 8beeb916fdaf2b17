# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/2759 https://github.com/tensorflow/tensorflow/issues/5048

A fully convolutional network is quick on images of one size and many times slower on images that each have their own;
sizes that were seen before are quick again.

Cause: `cudnn.benchmark = True` tries out several algorithms for every convolution at each size it has not met yet.
Line: autotuning_every_image_size.py:step
Remedy: `cudnn.benchmark = False`, the library's own guess; `healthy` keeps it on, with one size.
"""
import torch
from torch import nn

import blind


def fully_convolutional(channels, depth, classes):
    layers = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(channels, classes, 1))


def main():
    loop = blind.Loop("autotuning_every_image_size", "recompile", steps=300)
    device = loop.device()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = loop.variant != "fixed"
    batch, channels, largest = loop.size(4, 1), loop.size(128, 8), loop.size(600, 24)
    model = fully_convolutional(channels, loop.size(6, 2), 8)
    model = model.to(device, torch.bfloat16).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    sides = torch.randint(0, 6, (2048, 2), generator=generator)
    sides = (largest - sides * loop.size(28, 1)).tolist()  # 36 pairs of height and width, 460 to 600 pixels
    if loop.variant == "healthy":
        sides = [[loop.size(512, 16)] * 2]
    images = torch.randn(batch, 3, largest, largest, generator=generator).to(device, torch.bfloat16)
    labels = torch.randint(0, 8, (batch, largest, largest), generator=generator).to(device)

    def step(i):
        height, width = sides[i % len(sides)]
        x = images[:, :, :height, :width].contiguous(memory_format=torch.channels_last)
        logits = model(x).float()
        loss = nn.functional.cross_entropy(logits, labels[:, :height, :width].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
