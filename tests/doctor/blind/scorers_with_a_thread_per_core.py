# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/torchtitan/issues/4038.

During reinforcement-learning post-training both the trainer's and the generator's GPUs are idle for much of a step,
while more than a hundred processor cores are busy; neither launch overhead nor the tokenizer turned out to be it.

Cause: the processes that score the answers on the host each start a thread per core and keep one another from running.
Line: scorers_with_a_thread_per_core.py:score (torch.set_num_threads in scorer).
Remedy: each scorer gets its share of the cores.
"""
import multiprocessing
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


def score(answers, weight, rounds):
    """Rule-based rewards of 64 groups, by many short tensor operations."""
    for _ in range(rounds):
        answers = torch.tanh(answers * weight)
        answers = answers - answers.mean(1, keepdim=True)
    return answers.square().view(64, -1).mean(1).tolist()


def scorer(pipe, threads, rows, width, rounds):
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    answers = torch.randn(rows, width, generator=generator)
    weight = torch.rand(width, generator=generator)
    while pipe.recv():
        pipe.send(score(answers, weight, rounds))


def main():
    loop = blind.Loop("scorers_with_a_thread_per_core", "threads", steps=350)
    device = loop.device()
    torch.manual_seed(0)
    scorers, cores = loop.size(4, 2), os.cpu_count()
    threads = cores if loop.planted else max(1, cores // (2 * scorers))
    # Healthy scores an eighth of the answers.
    rows = loop.size(256 if loop.variant == "healthy" else 2048, 64)
    width, batch = loop.size(4096, 16), loop.size(8192, 64)
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for _ in range(scorers):
        ours, theirs = context.Pipe()
        workers.append(context.Process(target=scorer, daemon=True,
                                       args=(theirs, threads, rows, loop.size(256, 16), loop.size(8, 2))))
        workers[-1].start()
        pipes.append(ours)

    model = nn.Sequential(*[m for _ in range(loop.size(12, 1)) for m in (nn.Linear(width, width), nn.GELU())])
    model = model.to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(batch, width, device=device, dtype=torch.bfloat16)
    rewards = torch.ones(batch, device=device)
    wait = blind.wait_for(device)

    def step(i):
        nonlocal rewards
        for pipe in pipes:
            pipe.send(True)
        # The scorers work on the next rewards while the GPU trains with the last ones.
        error = F.mse_loss(model(x).float(), x.float(), reduction="none").mean(1)
        loss = (rewards * error).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        wait()
        begin = time.perf_counter()
        scores = [value for pipe in pipes for value in pipe.recv()]
        loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
        scores = torch.tensor(scores).repeat(-(-batch // len(scores)))[:batch]
        rewards = (scores / scores.mean()).to(device)

    try:
        loop.run(step, wait)
    finally:
        for pipe in pipes:
            pipe.send(False)
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
