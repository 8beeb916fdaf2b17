# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Farama-Foundation/HighwayEnv/issues/103 https://github.com/DLR-RM/stable-baselines3/issues/682

One core is at its limit and the GPU does almost nothing during reinforcement learning; an old server with a good card
is beaten by a desktop without one.

Cause: the simulator is Python code that runs in the training process, and each update waits for its answers.
Line: python_simulator_in_one_thread.py:advance
Remedy: eight processes simulate their share of the environments at the same time.
"""
import math
import multiprocessing
import random
import time

import numpy as np
import torch
from torch import nn

import blind


def advance(states, actions, substeps):
    """Cart and pole, a few small Euler steps for each action; states is a list of [x, v, angle, spin]."""
    for state, action in zip(states, actions):
        x, v, angle, spin = state
        force = 10.0 if action else -10.0
        for _ in range(substeps):
            sine, cosine = math.sin(angle), math.cos(angle)
            push = (force + 0.05 * spin * spin * sine) / 1.1
            turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
            x, v = x + 0.001 * v, v + 0.001 * (push - 0.05 * turn * cosine / 1.1)
            angle, spin = angle + 0.001 * spin, spin + 0.001 * turn
        if abs(angle) > 0.3 or abs(x) > 2.4:
            x, v, angle, spin = 0.0, 0.0, 0.02, 0.0
        state[:] = (x, v, angle, spin)
    return states


def simulate(pipe, states, substeps):
    """A simulator process: answers actions with states until it is sent None."""
    for actions in iter(pipe.recv, None):
        pipe.send(advance(states, actions, substeps))


def main():
    loop = blind.Loop("python_simulator_in_one_thread", "host", steps=450)
    healthy = loop.variant == "healthy"
    count, substeps, workers = loop.size(512, 16), 20, loop.size(8, 2)
    rng = random.Random(0)
    states = [[0.0, 0.0, rng.uniform(-0.05, 0.05), 0.0] for _ in range(count)]
    pipes, processes = [], []
    if not loop.planted:
        context = multiprocessing.get_context("fork")  # before the GPU is first used
        for w in range(workers):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=simulate, args=(theirs, states[w::workers], substeps), daemon=True))
            processes[-1].start()
            pipes.append(ours)
    device = loop.device()
    torch.manual_seed(0)
    width, rows = loop.size(2048, 16), loop.size(49152 if healthy else 12288, 32)
    layers = [nn.Linear(4, width), nn.ReLU()]
    for _ in range(loop.size(10, 2)):
        layers += [nn.Linear(width, width), nn.ReLU()]
    policy = nn.Sequential(*layers, nn.Linear(width, 2)).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-4)
    replay = torch.randn(rows, 4, device=device)
    seen = np.array([states[i] for w in range(workers) for i in range(w, count, workers)], dtype=np.float32)

    def update():
        logits = policy(replay.to(torch.bfloat16)).float()
        loss = nn.functional.cross_entropy(logits, (replay[:, 2] > 0).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def step(i):
        nonlocal seen
        observed = torch.from_numpy(seen).to(device)
        with torch.no_grad():
            actions = policy(observed.to(torch.bfloat16)).argmax(dim=1).tolist()
        begin = time.perf_counter()
        share = count // workers
        for w, pipe in enumerate(pipes):
            pipe.send(actions[w * share:(w + 1) * share])
        if healthy:  # the update runs beside the simulators
            update()
        answers = [s for pipe in pipes for s in pipe.recv()] if pipes else advance(states, actions, substeps)
        seen = np.array(answers, dtype=np.float32)
        if loop.planted:  # the actions have been read back: the GPU waits for the simulator
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
        start = i * count % (rows - rows % count or rows)
        replay[start:start + count] = observed[:rows - start]
        if not healthy:
            update()

    loop.run(step, blind.wait_for(device))
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
