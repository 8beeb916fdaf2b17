# SPDX-License-Identifier: Apache-2.0
"""https://github.com/openai/baselines/issues/295 (also chainer/chainerrl#332, pytorch/rl#2406, openai/gym#2128)

A deep Q network learns from a memory of screens. So that each screen lies there only once, a state is an object that
holds its last four; the memory fits now, but learning has become slow, and the GPU idles most of the time.

Cause: each state of a batch, and each that came after it, joins its screens into an array when it is drawn, a thousand
small concatenations on the host before each update.
Line: stacked_frames_joined_at_every_draw.py:__array__
Remedy: all screens lie in one tensor on the GPU, where those of the states that are drawn are gathered at once.
"""
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training

STACKED, SIDE, ACTIONS = 4, 84, 6


class LazyFrames:
    """A state: references to its last screens, joined when somebody asks for an array."""

    def __init__(self, frames):
        self.frames = frames

    def __array__(self, dtype=None, copy=None):
        joined = np.concatenate(self.frames, axis=0)
        return joined if dtype is None else joined.astype(dtype)


def draw_batch(memory, chosen, pinned):
    """The states of the chosen moments and those after them, in pinned memory."""
    for row, k in enumerate(chosen):
        state, following = memory[k]
        pinned[0, row] = np.asarray(state)
        pinned[1, row] = np.asarray(following)


class QNetwork(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(STACKED, channels, 8, stride=4), nn.ReLU(), nn.Conv2d(channels, 2 * channels, 4, stride=2),
            nn.ReLU(), nn.Conv2d(2 * channels, 2 * channels, 3), nn.ReLU(), nn.Flatten())
        self.values = nn.Sequential(nn.Linear(98 * channels, width), nn.ReLU(), nn.Linear(width, ACTIONS))

    def forward(self, screens):
        screens = screens.to(self.values[0].weight.dtype).div_(255).contiguous(memory_format=torch.channels_last)
        return self.values(self.eyes(screens)).float()


def main():
    loop = blind.Loop("stacked_frames_joined_at_every_draw", "host")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    kept, size, channels, width = loop.size(20_000, 40), loop.size(512, 4), loop.size(128, 4), loop.size(4096, 16)
    screens = np.random.default_rng(0).integers(0, 256, size=(kept, 1, SIDE, SIDE), dtype=np.uint8)
    states = [LazyFrames([screens[k - n] for n in reversed(range(STACKED))]) for k in range(kept)]
    memory = list(zip(states, states[1:]))  # the states before k = 3 wrap around, as a ring of screens does
    with torch.device(device):
        online, target = (QNetwork(channels, width).to(torch.bfloat16, memory_format=torch.channels_last)
                          for _ in range(2))
        ring, offsets = torch.from_numpy(screens[:, 0]).to(device), torch.arange(1 - STACKED, 1)
        actions, rewards = torch.randint(0, ACTIONS, (kept,)), torch.randn(kept)
    optimizer = torch.optim.SGD(online.parameters(), lr=1e-4)
    buffers = [torch.empty(2, size, STACKED, SIDE, SIDE, dtype=torch.uint8, pin_memory=device.type == "cuda")
               for _ in range(2)]
    sent = [torch.cuda.Event() if device.type == "cuda" else None for _ in range(2)]
    draw = random.Random(0)

    def step(i):
        chosen = [draw.randrange(STACKED, kept - 1) for _ in range(size)]
        picked = torch.tensor(chosen, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        if loop.planted:
            buffer, event = buffers[i % 2], sent[i % 2]
            if event is not None:
                event.synchronize()  # the copy of two steps ago
            draw_batch(memory, chosen, buffer.numpy())
            now, then = buffer.to(device, non_blocking=True)
            if event is not None:
                event.record()
        else:
            now, then = (ring[picked[:, None] + offsets + later] for later in (0, 1))
        with torch.no_grad():
            wanted = rewards[picked] + 0.99 * target(then).amax(dim=1)
        loss = F.smooth_l1_loss(online(now).gather(1, actions[picked][:, None])[:, 0], wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
