# SPDX-License-Identifier: Apache-2.0
"""https://github.com/LiMeng95/MultiPoseNet.pytorch/issues/6 (cached in zylo117/Yet-Another-EfficientDet-Pytorch)

Training the part that finds boxes is six times as slow as training the part that finds joints. With timers I found
that the anchors are to blame: making them and sending them to the GPU takes far longer than the network itself.

Cause: the anchors of a batch depend on nothing but the size of its images, yet they are formed anew with NumPy in each
forward pass, several hundred thousand boxes in double precision, and copied over while the GPU has nothing to do.
Line: anchors_made_in_numpy_for_every_batch.py:shifted (Anchors.forward calls it for each level of the pyramid).
Remedy: the anchors are kept on the GPU for the size they were made for.
Trap: a timer around the copy counts what the GPU has still to do.
"""
import numpy
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


def base_anchors(size, ratios=(0.5, 1, 2), scales=(1, 2 ** (1 / 3), 2 ** (2 / 3))):
    """Nine boxes around the origin."""
    sides = size * numpy.tile(scales, len(ratios))
    tall = numpy.repeat(ratios, len(scales))
    width = numpy.sqrt(sides**2 / tall)
    return numpy.stack([-width / 2, -width * tall / 2, width / 2, width * tall / 2], axis=1)


def shifted(shape, stride, anchors):
    """These boxes around each point of a grid."""
    x, y = numpy.meshgrid((numpy.arange(shape[1]) + 0.5) * stride, (numpy.arange(shape[0]) + 0.5) * stride)
    shifts = numpy.vstack((x.ravel(), y.ravel(), x.ravel(), y.ravel())).transpose()
    boxes = anchors.reshape((1, -1, 4)) + shifts.reshape((1, -1, 4)).transpose((1, 0, 2))
    return boxes.reshape((-1, 4))


class Anchors(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.keep, self.kept = keep, {}

    def forward(self, images):
        shape = tuple(images.shape[2:])
        if shape in self.kept:
            return self.kept[shape]
        boxes = numpy.zeros((0, 4))
        for level in (3, 4, 5, 6, 7):
            cells = [(side + 2**level - 1) // 2**level for side in shape]
            boxes = numpy.append(boxes, shifted(cells, 2**level, base_anchors(4 * 2**level)), axis=0)
        boxes = torch.from_numpy(boxes.astype(numpy.float32)).to(images.device)
        if self.keep:
            self.kept[shape] = boxes
        return boxes


class Detector(nn.Module):
    """A pyramid of features, and at each of its points whether there is something, for nine boxes."""

    def __init__(self, width):
        super().__init__()
        sides = [3, width // 4, width // 2, width]
        self.stem = nn.Sequential(*[part for a, b in zip(sides, sides[1:])
                                    for part in (nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ReLU())])
        self.down = nn.ModuleList(nn.Conv2d(width, width, 3, stride=2, padding=1) for _ in range(4))
        self.head = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 9, 3, padding=1))

    def forward(self, x):
        levels = [self.stem(x)]
        for down in self.down:
            levels.append(torch.relu(down(levels[-1])))
        return torch.cat([self.head(level).permute(0, 2, 3, 1).flatten(1) for level in levels], dim=1)


def hits(anchors, boxes):
    """Which anchors cover one of the boxes by at least a half."""
    low, high = torch.maximum(anchors[:, None, :2], boxes[:, :2]), torch.minimum(anchors[:, None, 2:], boxes[:, 2:])
    both = (high - low).clamp(min=0).prod(dim=2)
    areas = [(each[:, 2:] - each[:, :2]).prod(dim=1) for each in (anchors, boxes)]
    return (both / (areas[0][:, None] + areas[1] - both)).amax(dim=1) > 0.5


def main():
    loop = blind.Loop("anchors_made_in_numpy_for_every_batch", "host", steps=450)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, side = 2, loop.size(1536, 128)
    model = Detector(loop.size(256, 8)).to(device, memory_format=torch.channels_last)
    anchors_of = Anchors(keep=not loop.planted)
    images = torch.randn(rows, 3, side, side, device=device).to(memory_format=torch.channels_last)
    corners = torch.rand(rows, 8, 2, device=device) * side * 0.8
    boxes = torch.cat([corners, corners + side * (0.05 + 0.15 * torch.rand(rows, 8, 2, device=device))], dim=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")

    def step(i):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            found = model(images)
        anchors = anchors_of(images)
        goals = torch.stack([hits(anchors, each) for each in boxes])
        loss = F.binary_cross_entropy_with_logits(found.float(), goals.float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
