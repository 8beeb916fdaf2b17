# SPDX-License-Identifier: Apache-2.0
"""github.com/Tencent-Hunyuan/UniRL/pull/45.

The training phase of our policy optimisation is slow. Answers to one prompt stay together on one rank; all GPUs look
busy all the time, yet tokens per second stay far below what one GPU suggests.

Cause: the answers to one prompt are of like length, so one rank draws the long ones; the others wait in the collective.
Line: long_answers_on_one_rank.py:deal.
Remedy: deal the answers by length, each to the rank with the smallest sum so far.

Run: torchrun --nproc-per-node 2 long_answers_on_one_rank.py [planted|fixed|healthy] (with --small also without it).
"""
import os
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import blind

RANKS = 2


def deal(lengths, ranks, by_sum):
    """Lists of answers, one for each rank; `lengths` has a row for each prompt and a column for each of its answers."""
    if not by_sum:
        return [part.ravel().tolist() for part in np.array_split(lengths, ranks)]
    parts = [[] for _ in range(ranks)]
    for length in sorted(lengths.ravel().tolist(), reverse=True):
        min(parts, key=sum).append(length)
    return parts


def join(folder):
    """Rank and number of ranks; alone, without torchrun, there is one."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size()


def main():
    loop = blind.Loop("long_answers_on_one_rank", "straggler", steps=250)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = loop.device()
    with tempfile.TemporaryDirectory() as folder:
        rank, ranks = join(folder)
        if rank:
            sys.stdout = open(os.devnull, "w")  # one line in all, from rank 0
        torch.manual_seed(0)
        dtype = loop.size(torch.bfloat16, torch.float32)
        width, siblings, longest = loop.size(2048, 16), loop.size(8, 4), loop.size(4096, 32)
        model = nn.Sequential(*[m for _ in range(loop.size(3, 1)) for m in (
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))]).to(device, dtype)
        model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        # Every rank draws the same lengths. The last prompts are the hard ones, with the longest answers.
        rng = np.random.default_rng(0)
        prompts = np.sort(rng.uniform(0.1, 1.0, (16, ranks, 1)) * longest, axis=1)
        lengths = (prompts * rng.uniform(0.9, 1.0, (16, ranks, siblings))).astype(int) + 1
        if loop.variant == "healthy":
            lengths[:] = longest // 2
        tokens = torch.randn(siblings * longest, width, device=device, dtype=dtype)

        def step(i):
            mine = deal(lengths[i % 16], ranks, loop.variant == "fixed")[rank]
            answers = model(tokens[: sum(mine)])
            loss = F.mse_loss(answers.float(), tokens[: sum(mine)].float(), reduction="sum") / lengths[i % 16].sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        loop.run(step, blind.wait_for(device))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
