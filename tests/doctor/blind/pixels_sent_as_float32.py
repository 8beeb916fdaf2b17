# SPDX-License-Identifier: Apache-2.0
"""https://github.com/talmolab/sleap-nn/pull/406 (also roboflow/rf-detr#1415, pytorch/pytorch#121414)

Poses are looked for in video. The frames are normalised when they are read, so that the network gets floats between
0 and 1. Sending them to the GPU takes longer than the network does, although the memory is pinned.

Cause: a pixel was one byte and travels as four; the network can start only when all of them have come.
Line: pixels_sent_as_float32.py:step (its call of to)
Remedy: the bytes are sent as they are, and scaled on the GPU.
Trap: pinned memory and non_blocking, which are told to everyone, are in use: they don't make the copy smaller.
"""
import torch
from torch import nn

import blind
import training

PATCH = 16


class PoseNetwork(nn.Module):
    """For each patch of a frame, how likely each key point lies in it."""

    def __init__(self, width, points):
        super().__init__()
        self.enter = nn.Linear(3 * PATCH**2, width)
        self.body, self.heat = training.WideNetwork(width, width, width, groups=2), nn.Linear(width, points)

    def forward(self, frames):
        count, side = len(frames), frames.shape[-1] // PATCH
        rows = frames.view(count, 3, side, PATCH, side, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(count, side**2, -1)
        return self.heat(self.body(self.enter(rows)))


@torch.no_grad()
def main():
    loop = blind.Loop("pixels_sent_as_float32", "copy")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    frames, side, width = loop.size(128, 2), loop.size(512, 32), loop.size(1024, 16)
    with torch.device(device):
        model = PoseNetwork(width, 14).to(torch.bfloat16)
    clips = [torch.randint(0, 256, (frames, 3, side, side), dtype=torch.uint8) for _ in range(2)]
    if loop.planted:  # as the reader of the video hands them out
        clips = [clip.float().div_(255) for clip in clips]
    if device.type == "cuda":
        clips = [clip.pin_memory() for clip in clips]
    found = []

    def step(i):
        batch = clips[i % len(clips)].to(device, non_blocking=True).to(torch.bfloat16)
        if not loop.planted:
            batch = batch.div_(255)
        heat = model(batch)
        found.append(heat.argmax(dim=1).cpu())  # the patch of each point of each frame
        del found[:-100]

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
