# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/issues/20581

It took a good deal of measuring to see why the GPU was hardly used in the training of an image classifier: everything
ran with the default settings, and with sixteen loader workers in place of none it was ten times faster.

Cause: the loader has no workers by default, so photos are decoded, cropped and coloured in the training process.
Line: images_decoded_by_the_default_loader.py:__getitem__
Remedy: eight workers, which decode beside the GPU's work.
"""
import io
import random

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import nn

import blind
import training

PATCH = 16


def make_files(count, side):
    """JPEG files in memory, as smooth as photos are."""
    rng, files = np.random.default_rng(0), []
    for _ in range(count):
        coarse = rng.integers(0, 256, size=(side // 10, side // 8, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((side * 5 // 4, side), Image.BICUBIC).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


class Photos(torch.utils.data.Dataset):
    def __init__(self, files, samples, crop):
        self.files, self.samples, self.crop = files, samples, crop

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        rng = random.Random(index)
        photo = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        edge = rng.randint(min(photo.size) // 2, min(photo.size))
        left, top = (rng.randint(0, whole - edge) for whole in photo.size)
        photo = photo.resize((self.crop, self.crop), Image.BILINEAR, box=(left, top, left + edge, top + edge))
        if rng.random() < 0.5:
            photo = photo.transpose(Image.FLIP_LEFT_RIGHT)
        photo = ImageEnhance.Brightness(photo).enhance(rng.uniform(0.8, 1.2))
        photo = ImageEnhance.Color(photo).enhance(rng.uniform(0.8, 1.2))
        return torch.from_numpy(np.array(photo))


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
    loop = blind.Loop("images_decoded_by_the_default_loader", "input", steps=160)
    device = loop.device()
    torch.manual_seed(0)
    batch, crop = loop.size(64 if loop.variant == "healthy" else 16, 2), loop.size(224, 32)
    data = Photos(make_files(loop.size(64, 2), loop.size(256, 48)), (loop.steps + loop.warm_up + 1) * batch, crop)
    workers = {} if loop.planted else {"num_workers": loop.size(8, 1), "persistent_workers": True}
    loader = torch.utils.data.DataLoader(data, batch_size=batch, pin_memory=device.type == "cuda", **workers)
    if loop.variant == "healthy":
        body, _ = training.make_wide(3 * PATCH * PATCH, loop.size(8192, 16), device, groups=2)
    else:
        width = loop.size(4096, 16)
        with torch.device(device):
            rest, _ = training.make_model(loop.size(27, 1), width, device)
            body = nn.Sequential(nn.Linear(3 * PATCH * PATCH, width), nn.ReLU(), rest)
    model = PatchNetwork(body.to(device, torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches, gaps = iter(loader), training.GpuGaps(loop, device)

    def step(i):
        images = next(batches)
        gaps.begin()
        training.train(model, optimizer, images.to(device, non_blocking=True))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
