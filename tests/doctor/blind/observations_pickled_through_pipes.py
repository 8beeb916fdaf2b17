# SPDX-License-Identifier: Apache-2.0
"""https://github.com/thu-ml/tianshou/pull/174 (also openai/baselines#608, thu-ml/tianshou#713)

I run the environments in processes of their own, and each of them is fast. Still the agent gets few steps a second
when the observations are pictures, and more processes make no difference.

Cause: each picture is pickled, written to a pipe in pieces that fit into it, read by the training process and unpickled
there, one environment after the other, while the GPU has nothing to do.
Line: observations_pickled_through_pipes.py:exchange (its calls of recv).
Remedy: the environments draw into memory that all processes share, and the pipe says only that they are ready.
"""
import multiprocessing
import time

import numpy
import torch
from torch import nn

import blind
import training


class Ball:
    """An environment that shows four frames of a ball; an action turns it."""

    def __init__(self, side, seed):
        rng = numpy.random.default_rng(seed)
        self.side, self.at, self.pace = side, rng.integers(0, side - 8, 2), rng.integers(1, 4, 2)
        self.frames = numpy.zeros((4, side, side), dtype=numpy.uint8)
        self.count = 0

    def step(self, action):
        self.pace = -self.pace if action else self.pace
        self.at = (self.at + self.pace) % (self.side - 8)
        frame = self.frames[self.count % 4]
        frame[:] = 0
        frame[self.at[0]:self.at[0] + 8, self.at[1]:self.at[1] + 8] = 255
        self.count += 1
        return self.frames


def play(pipe, first, count, side, shared):
    """A process of `count` environments: answers actions until it is sent None."""
    balls = [Ball(side, first + n) for n in range(count)]
    room = numpy.frombuffer(shared, dtype=numpy.uint8).reshape(-1, 4, side, side) if shared else None
    for actions in iter(pipe.recv, None):
        for n, (ball, action) in enumerate(zip(balls, actions)):
            if shared:
                room[first + n] = ball.step(action)
            else:
                pipe.send(ball.step(action))
        if shared:
            pipe.send(True)


class Policy(nn.Module):
    """Pictures of the ball to two values, and a body that gives the GPU something to learn."""

    def __init__(self, side, width, layers):
        super().__init__()
        self.eyes = nn.Conv2d(4, 32, 8, stride=4)
        places = ((side - 8) // 4 + 1) ** 2
        self.enter, self.leave = nn.Linear(32 * places, width, bias=False), nn.Linear(width, 2)
        self.body = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, pictures):
        x = self.enter(torch.relu(self.eyes(pictures.to(torch.bfloat16) / 255)).flatten(1))
        for layer in self.body:
            x = x + torch.relu(layer(x))
        return self.leave(x)


def main():
    loop = blind.Loop("observations_pickled_through_pipes", "host", steps=250)
    if loop.variant == "healthy":
        return training.run_full_steps(loop, loop.device())
    processes, each, side = loop.size(8, 2), loop.size(32, 2), loop.size(84, 20)
    count = processes * each
    context = multiprocessing.get_context("fork")  # before the GPU is first used
    shared = None if loop.planted else context.RawArray("B", count * 4 * side * side)
    pipes, children = [], []
    for first in range(0, count, each):
        ours, theirs = context.Pipe()
        children.append(context.Process(target=play, args=(theirs, first, each, side, shared), daemon=True))
        children[-1].start()
        pipes.append(ours)
    device = loop.device()
    torch.manual_seed(0)
    rows = loop.size(4096, 8)
    with torch.device(device):
        policy = Policy(side, loop.size(2048, 16), loop.size(8, 1)).to(torch.bfloat16)
        replay = torch.randint(0, 256, (rows, 4, side, side), dtype=torch.uint8)
        returns = torch.randn(rows, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-4)
    seen = numpy.zeros((count, 4, side, side), dtype=numpy.uint8)
    room = seen if loop.planted else numpy.frombuffer(shared, dtype=numpy.uint8).reshape(seen.shape)

    def exchange(actions):
        """Sends every environment its action and brings back what it shows."""
        for n, pipe in enumerate(pipes):
            pipe.send(actions[n * each:(n + 1) * each])
        if not loop.planted:
            for pipe in pipes:
                pipe.recv()
            return room
        begin = time.perf_counter()
        for n in range(count):
            room[n] = pipes[n // each].recv()
        loop.planted_ms.append(1e3 * (time.perf_counter() - begin))  # the actions were read back: the GPU is idle
        return room

    def step(i):
        nonlocal seen
        pictures = torch.from_numpy(seen).to(device)
        with torch.no_grad():
            actions = policy(pictures).argmax(dim=1).tolist()
        seen = exchange(actions)
        start = i * count % rows
        replay[start:start + count] = pictures[:rows - start]
        loss = nn.functional.mse_loss(policy(replay).float(), returns)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))
    for pipe in pipes:
        pipe.send(None)
    for child in children:
        child.join()


if __name__ == "__main__":
    main()
