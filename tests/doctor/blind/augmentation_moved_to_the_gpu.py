# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/lerobot/pull/4627 (the last row of its table)

On fast GPUs the training became three times as fast when the images were augmented on the GPU in place of the loader's
workers. On ours, with eight workers, the same change makes it 5% slower.

Cause: none. The workers keep up: the next batch is always there, and the GPU is the slower side.
Line: augmentation_moved_to_the_gpu.py:__getitem__ (in the workers, where it holds up nobody)
Remedy: there is none to find; `fixed` does the obvious thing and augments on the GPU.
Trap: the GPU has no time to spare, so what the workers did for nothing now comes on top of its own work.
"""
import numpy as np
import torch
from torch import nn

import blind
import training

PATCH = 16


class Frames(torch.utils.data.Dataset):
    """Camera frames, uint8, with random brightness, contrast and a shift by some pixels."""

    def __init__(self, samples, side, augments):
        self.samples, self.augments = samples, augments
        self.frames = np.random.default_rng(0).integers(0, 256, size=(128, side, side, 3), dtype=np.uint8)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        frame = self.frames[index % len(self.frames)]
        if self.augments:
            rng = np.random.default_rng(index)
            bright, contrast, down, right = rng.uniform(-20, 20), rng.uniform(0.8, 1.2), *rng.integers(-4, 5, size=2)
            frame = np.roll(frame, (int(down), int(right)), axis=(0, 1)).astype(np.float32)
            frame = np.clip((frame - 128) * contrast + 128 + bright, 0, 255).astype(np.uint8)
        return torch.from_numpy(np.array(frame))


def augmented(frames):
    """The same on the GPU, where all frames of a batch are shifted alike."""
    down, right = torch.randint(-4, 5, (2,)).tolist()
    bright = torch.empty(len(frames), 1, 1, 1, device=frames.device).uniform_(-20, 20)
    contrast = torch.empty(len(frames), 1, 1, 1, device=frames.device).uniform_(0.8, 1.2)
    frames = torch.roll(frames, (down, right), dims=(1, 2)).float()
    return ((frames - 128) * contrast + 128 + bright).clamp(0, 255)


class PatchNetwork(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, frames):
        batch, side = frames.shape[0], frames.shape[1] // PATCH
        x = frames.view(batch, side, PATCH, side, PATCH, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 3 * PATCH * PATCH)
        return self.body(x.to(torch.bfloat16) / 128 - 1)


def main():
    loop = blind.Loop("augmentation_moved_to_the_gpu", "none", steps=140)
    device = loop.device()
    batch, side = loop.size(48, 2), loop.size(256, 32)
    data = Frames((loop.steps + loop.warm_up + 1) * batch, side, loop.variant != "fixed")
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(8, 1), persistent_workers=True,
                                         pin_memory=device.type == "cuda", prefetch_factor=4)
    body, optimizer = training.make_wide(3 * PATCH * PATCH, loop.size(8192, 16), device, groups=2)
    model, batches = PatchNetwork(body), iter(loader)
    if loop.variant == "healthy":  # the same training on one batch that lies on the GPU, recorded
        frames = next(batches).to(device)
        step = training.recorded(lambda: training.train(model, optimizer, frames), device)
        return loop.run(lambda i: step(), blind.wait_for(device))

    def step(i):
        frames = next(batches).to(device, non_blocking=True)
        training.train(model, optimizer, augmented(frames) if loop.variant == "fixed" else frames)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
