# SPDX-License-Identifier: Apache-2.0
"""https://github.com/roboflow/rf-detr/pull/1389 (also pytorch/vision#8986, open-mmlab/mmcv#214)

Loading large photographs only to make them small afterwards is inefficient: the pipelines work at fixed sizes such as
224 x 224, yet each file is decoded at its full resolution, and the GPU waits for the loader.

Cause: all pixels of a photograph are decoded, of which nearly all are averaged away when it is made small.
Line: photographs_decoded_at_full_size.py:__getitem__ (in the workers)
Remedy: the decoder is told the size that is needed (draft) and leaves out the fine part of each block.
"""
import io
import random

import numpy as np
import torch
from PIL import Image
from torch import nn

import blind
import training

PATCH = 16


def make_files(count, side):
    """JPEG files in memory as cameras write them: smooth, with a little grain."""
    rng, files = np.random.default_rng(0), []
    for _ in range(count):
        coarse = rng.integers(0, 256, size=(side // 16, side // 12, 3), dtype=np.uint8)
        photo = np.asarray(Image.fromarray(coarse).resize((side * 4 // 3, side), Image.BICUBIC)).astype(np.int16)
        photo += rng.integers(-1, 2, size=photo.shape, dtype=np.int16)
        file = io.BytesIO()
        Image.fromarray(photo.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


class Photographs(torch.utils.data.Dataset):
    """Photographs, shrunk so that the shorter side is a little longer than the crop, and cropped."""

    def __init__(self, files, samples, crop, draft):
        self.files, self.samples, self.crop, self.draft = files, samples, crop, draft

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        rng = random.Random(index)
        photo = Image.open(io.BytesIO(self.files[index % len(self.files)]))
        shorter = self.crop * 8 // 7
        scale = shorter / min(photo.size)
        size = tuple(max(shorter, round(scale * edge)) for edge in photo.size)
        if self.draft:
            photo.draft("RGB", size)
        photo = photo.convert("RGB").resize(size, Image.BILINEAR)
        left, top = (rng.randint(0, whole - self.crop) for whole in size)
        return torch.from_numpy(np.array(photo.crop((left, top, left + self.crop, top + self.crop))))


class PatchNetwork(nn.Module):
    """A row for each patch of 16 x 16 pixels."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, images):
        batch, side = images.shape[0], images.shape[1] // PATCH
        x = images.view(batch, side, PATCH, side, PATCH, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 3 * PATCH * PATCH)
        return self.body(x.to(torch.bfloat16) / 128 - 1)


def main():
    loop = blind.Loop("photographs_decoded_at_full_size", "input", steps=200)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    batch, crop = loop.size(48 if healthy else 16, 2), loop.size(224, 32)
    if healthy:
        loop.steps = min(loop.steps, 110)
        body, _ = training.make_wide(3 * PATCH * PATCH, loop.size(8192, 16), device, groups=4)
    else:
        width = loop.size(4096, 16)
        with torch.device(device):
            rest, _ = training.make_model(loop.size(24, 1), width, device)
            body = nn.Sequential(nn.Linear(3 * PATCH * PATCH, width), nn.ReLU(), rest)
    model = PatchNetwork(body.to(device, torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    files = make_files(loop.size(24, 2), loop.size(1440, 64))
    data = Photographs(files, (loop.steps + loop.warm_up + 1) * batch, crop, not loop.planted)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(12, 1),
                                         pin_memory=device.type == "cuda", prefetch_factor=4)
    batches, gaps = iter(loader), training.GpuGaps(loop, device)

    def step(i):
        images = next(batches)
        gaps.begin()
        training.train(model, optimizer, images.to(device, non_blocking=True))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
