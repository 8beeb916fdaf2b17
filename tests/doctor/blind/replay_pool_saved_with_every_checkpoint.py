# SPDX-License-Identifier: Apache-2.0
"""https://github.com/rail-berkeley/softlearning/issues/1 (also unixpickle/anyrl-py#17, gbionics/amp-rsl-rl#56)

The agent learns from images, and its training can be resumed from checkpoints. Each of them holds everything that has
been seen so far and becomes huge; while one is written, nothing is learnt.

Cause: the whole pool of images is pickled with each checkpoint, in the thread that trains, though nearly all of it
has been in the checkpoint before.
Line: replay_pool_saved_with_every_checkpoint.py:save
Remedy: checkpoints hold the weights only, and what has come into the pool since the last one.
"""
import os
import pickle
import tempfile

import numpy as np
import torch
from torch import nn

import blind
import training


class Pool:
    """The last images that were seen, in a ring."""

    def __init__(self, room, pixels):
        self.random = np.random.default_rng(0)
        self.images = self.random.integers(0, 256, (room, pixels), dtype=np.uint8)
        self.at = 0

    def add(self, images):
        self.images[self.at:self.at + len(images)] = images
        self.at = (self.at + len(images)) % len(self.images)

    def draw(self, count):
        return self.images[self.random.integers(0, len(self.images), count)]

    def newest(self, count):
        return self.images[np.arange(self.at - count, self.at)]


class Critic(nn.Module):
    """Values of images, of which each is a row of patches."""

    def __init__(self, patch, width):
        super().__init__()
        self.patch, self.enter = patch, nn.Linear(patch, width, bias=False)
        self.body = training.WideNetwork(width, width, 64, groups=4)

    def forward(self, images):
        patches = images.view(-1, self.patch).to(torch.bfloat16) / 255
        return self.body(self.enter(patches))


def save(path, model, seen):
    with open(path, "wb") as file:
        pickle.dump({"model": {k: v.float().cpu().numpy() for k, v in model.state_dict().items()}, "seen": seen},
                    file, protocol=pickle.HIGHEST_PROTOCOL)


def main():
    loop = blind.Loop("replay_pool_saved_with_every_checkpoint", "checkpoint")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    room, pixels, patch = loop.size(65536, 64), loop.size(4096, 64), loop.size(32, 16)
    count, new, every = loop.size(256, 4), loop.size(16, 2), loop.size(16, 2)
    pool = Pool(room, pixels)
    with torch.device(device):
        model = Critic(patch, loop.size(1024, 16)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    folder = tempfile.TemporaryDirectory()

    def step(i):
        pool.add(pool.draw(new) // 2)  # stands for what the agent sees meanwhile
        training.train(model, optimizer, torch.from_numpy(pool.draw(count)).to(device))
        if i % every == every - 1:
            if loop.planted:
                save(os.path.join(folder.name, "latest.pkl"), model, pool.images)
            else:
                save(os.path.join(folder.name, f"{i}.pkl"), model, pool.newest(new * every))

    loop.run(step, blind.wait_for(device))
    folder.cleanup()


if __name__ == "__main__":
    main()
