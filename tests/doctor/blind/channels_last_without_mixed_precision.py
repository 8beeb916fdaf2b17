# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch/issues/50036

Following the advice to keep images channels last made training of a convolutional network slower, not faster.

Cause: the network runs in plain fp32, with TF32 off for the sake of reproducible numbers, so its convolutions never
reach the tensor cores, which are what the layout is for.
Line: channels_last_without_mixed_precision.py:forward (of Bottleneck)
Remedy: mixed precision; the layout stays.
Trap: the obvious remedy, back to channels first, brings little: the fp32 products take the time in either layout.
"""
import torch
from torch import nn

import blind
import training


def reproducible():
    """As copied from project to project: the numbers of the paper were made without TF32."""
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


class Bottleneck(nn.Module):
    def __init__(self, wide, narrow):
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow),
                                    nn.ReLU(inplace=True))
        self.mix = nn.Sequential(nn.Conv2d(narrow, narrow, 3, padding=1, bias=False), nn.BatchNorm2d(narrow),
                                 nn.ReLU(inplace=True))
        self.widen = nn.Sequential(nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x):
        return torch.relu(x + self.widen(self.mix(self.reduce(x))))


class Segmenter(nn.Module):
    def __init__(self, wide, narrow, depth, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, wide, 7, stride=4, padding=3)
        self.blocks = nn.Sequential(*(Bottleneck(wide, narrow) for _ in range(depth)))
        self.head = nn.Conv2d(wide, classes, 1)

    def forward(self, x):
        small = self.head(self.blocks(self.stem(x)))
        return nn.functional.interpolate(small.float(), scale_factor=4, mode="bilinear", align_corners=False)


def main():
    loop = blind.Loop("channels_last_without_mixed_precision", "precision", steps=160)
    device = loop.device()
    reproducible()
    wide, narrow, classes, side = loop.size(256, 16), loop.size(64, 8), loop.size(32, 4), loop.size(384, 32)
    batch = loop.size(48 if loop.variant == "healthy" else 16, 2)
    model = Segmenter(wide, narrow, loop.size(12, 2), classes).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(batch, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    target = torch.randint(classes, (batch, side, side), device=device)
    span = training.GpuSpan(loop, device)

    def train(mixed):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
            logits = model(images)
        loss = nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    span.due = span.queued(lambda: train(True))
    mixed = not loop.planted

    def step(i):
        span.begin()
        train(mixed)
        span.end()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
