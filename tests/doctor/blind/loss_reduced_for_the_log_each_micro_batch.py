# SPDX-License-Identifier: Apache-2.0
"""github.com/modelscope/ms-swift/pull/9966

A profile of training with many micro-batches shows lots of tiny all-reduces in each step, which take far longer than
eight bytes should, now on one rank and now on the other.

Cause: the loss of every micro-batch is reduced over the ranks only to be logged; each of these is a barrier, so the
rank with the shorter micro-batch waits for the other one, sixteen times a step.
Line: loss_reduced_for_the_log_each_micro_batch.py:reduce_for_log
Remedy: each rank adds up its own losses; they are reduced once a step, when all ranks have done the same work.

Run: torchrun --nproc-per-node 2 loss_reduced_for_the_log_each_micro_batch.py [variant] (with --small also without it).
"""
import os
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import blind
import training

RANKS = 2


def join(folder):
    """Rank in the group; alone, without torchrun, the group has one member."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=0, world_size=1)
    return dist.get_rank()


def reduce_for_log(loss):
    value = loss.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def draw_lengths(rank, step, micro_batches, short, long):
    """Half of a rank's micro-batches are long, in an order of its own: every rank has the same work in a step."""
    lengths = np.repeat([short, long], micro_batches // 2)
    np.random.default_rng((step, rank)).shuffle(lengths)
    return lengths.tolist()


def main():
    loop = blind.Loop("loss_reduced_for_the_log_each_micro_batch", "straggler", steps=150)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = loop.device()
    with tempfile.TemporaryDirectory() as folder:
        rank = join(folder)
        if rank:
            sys.stdout = open(os.devnull, "w")  # one line in all, from rank 0
        torch.manual_seed(0)
        width, micro_batches = loop.size(2048, 16), loop.size(16, 4)
        short, long = loop.size(768, 4), loop.size(6144, 8)
        if loop.variant == "healthy":
            short = long = (short + long) // 2
        layers = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                  for _ in range(loop.size(2, 1))]
        model = nn.Sequential(*layers).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        tokens = torch.randn(long, width, device=device, dtype=next(model.parameters()).dtype)
        span, log = training.GpuSpan(loop, device), []

        def micro_step(length, last):
            model.require_backward_grad_sync = last
            loss = (model(tokens[:length]) - tokens[:length]).float().square().mean()
            (loss / micro_batches).backward()
            return loss.detach()

        def step(i):
            lengths = draw_lengths(rank, i, micro_batches, short, long)
            total = torch.zeros((), device=device)
            for k, length in enumerate(lengths):
                loss = micro_step(length, k == micro_batches - 1)
                if loop.planted:
                    span.begin()
                    loss = reduce_for_log(loss)
                    span.end()
                total += loss
            if not loop.planted:
                total = reduce_for_log(total)
            log.append(total / micro_batches)
            del log[:-50]
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        loop.run(step, blind.wait_for(device))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
