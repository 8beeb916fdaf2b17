# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/vision/issues/3206 (also pytorch/vision#8484, pytorch/vision#157)

The transforms draw their random numbers once for a whole batch. I need other ones for each image, so I go through the
batch on the GPU image by image, and that is too slow.

Cause: about nine small kernels for each of 256 images, each launched by the host; the host needs far longer for them
than the GPU.
Line: images_augmented_one_by_one_on_the_gpu.py:augment_one
Remedy: the random numbers are drawn as arrays, one value an image, and each change is one kernel for the whole batch.
"""
import random

import torch
from torch import nn
from torch.nn import functional

import blind
import training

MARGIN = 8


def augment_one(image):
    """A shift, a flip, another brightness and contrast, and an erased square."""
    side = image.shape[-1]
    top, left = random.randint(0, 2 * MARGIN), random.randint(0, 2 * MARGIN)
    image = functional.pad(image.unsqueeze(0), (MARGIN,) * 4, mode="reflect").squeeze(0)
    image = image[:, top:top + side, left:left + side]
    if random.random() < 0.5:
        image = image.flip(-1)
    image = image * random.uniform(0.7, 1.3)
    mean = image.mean()
    image = ((image - mean) * random.uniform(0.7, 1.3) + mean).clamp(0, 1)
    size = side // 4
    top, left = random.randrange(side - size), random.randrange(side - size)
    image[:, top:top + size, left:left + size] = 0
    return image


def augment_all(images):
    """The same for a batch."""
    count, _, side, _ = images.shape
    device, along = images.device, torch.arange(side, device=images.device)
    shift = torch.randint(0, 2 * MARGIN + 1, (2, count, 1), device=device)
    columns = torch.where(torch.rand(count, 1, device=device) < 0.5, along.flip(0), along)
    rows, columns = along + shift[0], columns + shift[1]
    padded = functional.pad(images, (MARGIN,) * 4, mode="reflect")
    images = padded[torch.arange(count, device=device)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    images = images.permute(0, 3, 1, 2)  # the gather leaves the channels last
    factors = torch.empty(2, count, 1, 1, 1, device=device, dtype=images.dtype).uniform_(0.7, 1.3)
    images = images * factors[0]
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = ((images - mean) * factors[1] + mean).clamp(0, 1)
    size = side // 4
    begin = torch.randint(0, side - size, (2, count, 1), device=device)
    inside = (along >= begin) & (along < begin + size)
    return images.masked_fill((inside[0][:, :, None] & inside[1][:, None, :]).unsqueeze(1), 0)


class Network(nn.Module):
    def __init__(self, channels, depth):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 8, stride=8)
        self.blocks = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth))
        self.head = nn.Linear(channels, 100)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + functional.relu(block(x))
        return self.head(x.mean(dim=(2, 3)))


def main():
    loop = blind.Loop("images_augmented_one_by_one_on_the_gpu", "launch", steps=400)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    random.seed(0)
    count, side = loop.size(256, 4), loop.size(224, 32)
    model = Network(loop.size(256, 8), loop.size(6, 1)).to(device, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.rand(2, count, 3, side, side, device=device).bfloat16()
    labels = torch.randint(100, (count,), device=device)

    def step(i):
        batch = images[i % 2]
        with torch.no_grad():
            batch = torch.stack([augment_one(image) for image in batch]) if loop.planted else augment_all(batch)
        logits = model(batch.contiguous(memory_format=torch.channels_last))
        loss = functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
