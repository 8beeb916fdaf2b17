# SPDX-License-Identifier: Apache-2.0
"""https://github.com/TianhongDai/hindsight-experience-replay/issues/1

Each epoch of the training takes longer than the one before it, by the same time each; it seems to go with the size of
the replay buffer. The original implementation does not behave like that.

Cause: to draw a batch, all episodes that the buffer holds so far are copied first, on the host, at every update.
Line: buffer_copied_to_draw_a_batch.py:sample
Remedy: draw from the buffer itself, without a copy of it.
"""
import numpy as np
import torch
from torch import nn

import blind
import training

SIZES = {"observation": 60, "next_observation": 60, "goal": 12, "achieved": 12, "action": 16}


class Buffer:
    """Episodes of equal length; a field is (episodes, time, size)."""

    def __init__(self, episodes, time, copies, seed):
        self.rng, self.copies, self.filled = np.random.default_rng(seed), copies, 0
        self.fields = {name: np.zeros((episodes, time, size), np.float32) for name, size in SIZES.items()}

    def store(self, episode):
        for name, values in episode.items():
            self.fields[name][self.filled] = values
        self.filled += 1

    def sample(self, count):
        fields = self.fields
        if self.copies:
            fields = {name: field[:self.filled].copy() for name, field in fields.items()}
        episode = self.rng.integers(0, self.filled, size=count)
        moment = self.rng.integers(0, fields["action"].shape[1], size=count)
        later = self.rng.integers(moment, fields["action"].shape[1])  # what was achieved later is taken for the goal
        drawn = {name: field[episode, moment] for name, field in fields.items()}
        drawn["goal"] = fields["achieved"][episode, later]
        return drawn


def main():
    loop = blind.Loop("buffer_copied_to_draw_a_batch", "growth", steps=420)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 220)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    episodes, time, count, width = loop.size(1600, 10), loop.size(100, 5), loop.size(4096, 8), loop.size(4096, 16)
    buffer = Buffer(episodes, time, loop.planted, 0)
    rng = np.random.default_rng(1)
    played = [{name: rng.standard_normal((time, size), dtype=np.float32) for name, size in SIZES.items()}
              for _ in range(4)]
    with torch.device(device):
        body, _ = training.make_model(loop.size(14, 1), width, device)
        critic = nn.Sequential(nn.Linear(sum(SIZES.values()), width), body, nn.Linear(width, 1)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(critic.parameters(), lr=1e-4)
    total, gaps = loop.warm_up + loop.steps, training.GpuGaps(loop, device)

    def step(i):
        while buffer.filled < max(1, episodes * (i + 1) // total):  # full at the end, however many steps there are
            buffer.store(played[buffer.filled % 4])
        drawn = buffer.sample(count)
        rows = torch.from_numpy(np.concatenate([drawn[name] for name in SIZES], axis=1))
        rows = rows.pin_memory() if device.type == "cuda" else rows
        gaps.begin()
        training.train(critic, optimizer, rows.to(device, non_blocking=True).to(torch.bfloat16))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
