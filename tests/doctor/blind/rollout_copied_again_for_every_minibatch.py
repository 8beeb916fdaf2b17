# SPDX-License-Identifier: Apache-2.0
"""https://github.com/DLR-RM/stable-baselines3/issues/1149

Training an agent that sees several images at once, a profile shows that, after playing itself, most time goes to
drawing minibatches from what was played. Most of that is the conversion to tensors, and it happens for each minibatch
of each pass. Couldn't the images be converted once, when they arrive?

Cause: what was played stays in NumPy arrays. For each minibatch, in every pass over it, images of that minibatch are
picked together on one core into a new array, and that is converted and copied to the GPU, which waits meanwhile.
Line: rollout_copied_again_for_every_minibatch.py:samples (of Rollout; to_torch, which it calls, has a part in it).
Remedy: a rollout is moved to the GPU once, when it is complete; minibatches are picked there.
"""
import numpy
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Rollout:
    """What several environments played, to be gone through some times in random order."""

    def __init__(self, count, shape, actions, device, moved):
        random = numpy.random.default_rng(0)
        self.count, self.device, self.moved, self.random = count, device, moved, random
        self.played = {
            "observations": random.integers(0, 256, (count, *shape), dtype=numpy.uint8),
            "actions": random.integers(0, actions, count),
            "advantages": random.standard_normal(count, dtype=numpy.float32),
            "returns": random.standard_normal(count, dtype=numpy.float32),
            "log_probs": numpy.full(count, -numpy.log(actions), dtype=numpy.float32),
        }

    def to_torch(self, array):
        return torch.tensor(array, device=self.device)

    def samples(self, picked):
        return {name: self.to_torch(array[picked]) for name, array in self.played.items()}

    def minibatches(self, size, passes):
        if self.moved:
            there = {name: torch.from_numpy(array).to(self.device) for name, array in self.played.items()}
        for _ in range(passes):
            order = self.random.permutation(self.count)
            if self.moved:
                order = torch.from_numpy(order).to(self.device)
            for at in range(0, self.count, size):
                picked = order[at:at + size]
                yield {name: part[picked] for name, part in there.items()} if self.moved else self.samples(picked)


class Agent(nn.Module):
    def __init__(self, channels, width, actions):
        super().__init__()
        self.seen = nn.Sequential(
            nn.Conv2d(channels, width, 8, stride=4), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, stride=2), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(8 * width), nn.ReLU())
        self.policy, self.value = nn.Linear(8 * width, actions), nn.Linear(8 * width, 1)

    def forward(self, images):
        seen = self.seen(images.float() / 255)
        return self.policy(seen), self.value(seen)[:, 0]


def main():
    loop = blind.Loop("rollout_copied_again_for_every_minibatch", "host", steps=400)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 250)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    side, actions, size = loop.size(168, 40), 8, loop.size(256, 4)
    rollout = Rollout(loop.size(2048, 12), (9, side, side), actions, device, moved=not loop.planted)
    agent = Agent(9, loop.size(64, 4), actions).to(device)
    agent(torch.zeros(1, 9, side, side, dtype=torch.uint8, device=device))
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-5, fused=device.type == "cuda")

    def forever():
        while True:
            yield from rollout.minibatches(size, passes=10)

    minibatches = forever()

    def step(i):
        batch = next(minibatches)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores, values = agent(batch["observations"])
        log_probs = scores.float().log_softmax(dim=1).gather(1, batch["actions"][:, None])[:, 0]
        ratio, gain = (log_probs - batch["log_probs"]).exp(), batch["advantages"]
        loss = F.mse_loss(values.float(), batch["returns"])
        loss = loss - torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
