# SPDX-License-Identifier: Apache-2.0
"""github.com/MIC-DKFZ/nnUNet#3063

Segmentation of volumes keeps every processor core busy and the GPU less than half; most of an iteration is spent
waiting for the next batch.

Cause: the workers rotate and blur each volume with NumPy, and all of them together are slower than the GPU
Line: volume_augmentation_starves_workers.py:augment (in the workers)
Remedy: workers give raw volumes; rotation and blur run on the GPU, batch by batch (which adds some work there)
"""
import math

import numpy
import torch
import torch.nn.functional as F

import blind
import training

BLUR, PASSES = (0.25, 0.5, 0.25), 8


def augment(volume, angle):
    """Rotates about the first axis (nearest voxel) and blurs along each axis, PASSES times."""
    side = volume.shape[0]
    line = numpy.linspace(-1.0, 1.0, side, dtype=numpy.float32)
    y, x = numpy.meshgrid(line, line, indexing="ij")
    c, s = math.cos(angle), math.sin(angle)
    rows = numpy.clip(numpy.rint((s * x + c * y + 1) * (side - 1) / 2), 0, side - 1).astype(numpy.int64)
    columns = numpy.clip(numpy.rint((c * x - s * y + 1) * (side - 1) / 2), 0, side - 1).astype(numpy.int64)
    volume = volume[:, rows, columns]
    for axis in [0, 1, 2] * PASSES:
        before, after = numpy.roll(volume, 1, axis), numpy.roll(volume, -1, axis)
        volume = BLUR[0] * before + BLUR[1] * volume + BLUR[2] * after
    return volume.astype(numpy.float32)


def augment_on_device(volumes, angles):
    c, s = torch.cos(angles), torch.sin(angles)
    zero, one = torch.zeros_like(c), torch.ones_like(c)
    turn = torch.stack([c, -s, zero, zero, s, c, zero, zero, zero, zero, one, zero], dim=1).view(-1, 3, 4)
    grid = F.affine_grid(turn, volumes.shape, align_corners=True)
    volumes = F.grid_sample(volumes, grid, mode="nearest", padding_mode="border", align_corners=True)
    taps = torch.tensor(BLUR, device=volumes.device)
    kernel = taps.view(1, 1, 3, 1, 1) * taps.view(1, 1, 1, 3, 1) * taps.view(1, 1, 1, 1, 3)
    for _ in range(PASSES):
        volumes = F.conv3d(volumes, kernel, padding=1)
    return volumes


class Scans(torch.utils.data.Dataset):
    def __init__(self, samples, side, raw):
        self.samples, self.raw = samples, raw
        self.scans = numpy.random.default_rng(5).random((4, side, side, side), dtype=numpy.float32)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        angle = math.pi * math.sin(12.9898 * index)
        scan = self.scans[index % 4]
        return torch.from_numpy(scan.copy() if self.raw else augment(scan, angle))[None], angle


def one_thread(_):
    torch.set_num_threads(1)


def main():
    loop = blind.Loop("volume_augmentation_starves_workers", "input", steps=250)
    device = loop.device()
    batch, side, width = 2, loop.size(96, 12), loop.size(32, 4)
    depth = loop.size(12 if loop.variant == "healthy" else 2, 1)
    torch.manual_seed(0)
    layers = [torch.nn.Conv3d(1, width, 3, padding=1), torch.nn.ReLU()]
    for _ in range(depth):
        layers += [torch.nn.Conv3d(width, width, 3, padding=1), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Conv3d(width, 2, 1)).to(device)
    model = model.to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Scans((loop.steps + loop.warm_up + 1) * batch, side, raw=not loop.planted)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(4, 1),
                                         pin_memory=device.type == "cuda",
                                         worker_init_fn=one_thread)
    batches, gaps = iter(loader), training.GpuGaps(loop, device)

    def step(_):
        scans, angles = next(batches)
        gaps.begin()
        scans = scans.to(device, non_blocking=True)
        if not loop.planted:
            scans = augment_on_device(scans, angles.to(device, torch.float32, non_blocking=True))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(scans).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
