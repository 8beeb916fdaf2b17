# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Project-MONAI/MONAI/issues/892 (done and tried out in Project-MONAI/MONAI#929)

All volumes are in the cache, yet batches of random patches, half of them around the organ, come slowly. The random crop
can't be cached; but the places it chooses from are the same in every epoch.

Cause: for each sample the worker compares all voxels of the volume and writes down the indices of those inside the
organ and of those outside, many millions of them, to draw four of them.
Line: foreground_looked_for_in_every_volume.py:places (called by the dataset in the workers).
Remedy: the indices are found once for each volume and kept with it; the workers only draw.
Trap: nothing is read or decoded in the workers, and cutting the patches out costs next to nothing.
"""
import numpy
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


def places(volume, organ):
    """The flat indices of all voxels inside the organ, and of those in the body but outside of it."""
    inside = organ.ravel() > 0
    outside = (volume.ravel() > -2.0) & ~inside
    return numpy.flatnonzero(inside), numpy.flatnonzero(outside)


def scan(sides, random):
    """A noisy volume with a brighter ellipsoid in it, and the voxels of that one."""
    axes = numpy.ogrid[tuple(slice(-1, 1, side * 1j) for side in sides)]
    centre, size = random.uniform(-0.3, 0.3, 3), random.uniform(0.3, 0.5, 3)
    organ = sum(((axis - c) / s) ** 2 for axis, c, s in zip(axes, centre, size)) < 1
    volume = random.standard_normal(sides, dtype=numpy.float32)
    volume[organ] += 1
    return volume, organ.astype(numpy.uint8)


class Patches(torch.utils.data.Dataset):
    def __init__(self, count, sides, patch, kept):
        random = numpy.random.default_rng(0)
        self.count, self.patch = count, patch
        self.scans = [scan(sides, random) for _ in range(4)]
        self.kept = [places(*one) for one in self.scans] if kept else None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random, which = numpy.random.default_rng(index), index % len(self.scans)
        volume, organ = self.scans[which]
        inside, outside = self.kept[which] if self.kept else places(volume, organ)
        cut = []
        for among in (inside, outside, inside, outside):
            centre = numpy.unravel_index(among[random.integers(len(among))], volume.shape)
            begins = [min(max(int(c) - self.patch // 2, 0), n - self.patch) for c, n in zip(centre, volume.shape)]
            around = tuple(slice(begin, begin + self.patch) for begin in begins)
            cut.append((volume[around], organ[around]))
        images, labels = (torch.from_numpy(numpy.stack(part)) for part in zip(*cut))
        return images[:, None], labels


class Segmenter(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        sides = [1] + [width] * layers
        self.layers = nn.Sequential(*[part for a, b in zip(sides, sides[1:])
                                      for part in (nn.Conv3d(a, b, 3, padding=1), nn.ReLU())])
        self.leave = nn.Conv3d(width, 2, 1)

    def forward(self, x):
        return self.leave(self.layers(x))


def joined(samples):
    return tuple(torch.cat(part) for part in zip(*samples))


def one_thread(_):
    torch.set_num_threads(1)


def main():
    loop = blind.Loop("foreground_looked_for_in_every_volume", "input", steps=200)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    sides, patch, size = (loop.size(256, 20), loop.size(256, 18), loop.size(160, 16)), loop.size(48, 8), 2
    data = Patches((loop.steps + loop.warm_up + 1) * size, sides, patch, kept=not loop.planted)
    loader = torch.utils.data.DataLoader(data, batch_size=size, num_workers=loop.size(4, 1), collate_fn=joined,
                                         worker_init_fn=one_thread, pin_memory=device.type == "cuda")
    model = Segmenter(loop.size(32, 4), loop.size(4, 2)).to(device).to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    batches, gaps = iter(loader), training.GpuGaps(loop, device)

    def step(_):
        images, labels = next(batches)
        gaps.begin()
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            found = model(images)
        loss = F.cross_entropy(found.float(), labels.long())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
