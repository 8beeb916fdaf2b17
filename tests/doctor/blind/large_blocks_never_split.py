# SPDX-License-Identifier: Apache-2.0
"""https://github.com/mlcommons/algorithmic-efficiency/pull/522 (what the option does: pytorch/pytorch#44742)

Speech of every length, on a GPU of which this job may take a part only. After it had run out of memory once, an option
for the allocator was set as the error's own text says. It runs through now, but takes up to twice as long.

Cause: with max_split_size_mb a block above that size is given out only whole, and only to a request of nearly its size;
batches of other lengths find none, so that blocks are freed and allocated anew in most steps, the device waiting.
Line: large_blocks_never_split.py:step (its forward and backward pass, where memory is asked for)
Remedy: the option is left away; the blocks of the longest batch are split for all others.
Trap: the option is what is recommended against fragmented memory, and the memory is no longer fragmented.
"""
import os
import sys

if "planted" in sys.argv or not {"fixed", "healthy"} & set(sys.argv):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64"

import torch

import blind
import training


def main():
    loop = blind.Loop("large_blocks_never_split", "allocation", steps=150)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    if device.type == "cuda":  # the rest of the GPU is another job's
        everything = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, 14 * 2**30 / everything))
    torch.manual_seed(0)
    shortest, longest, width = loop.size(100_000, 10), loop.size(300_000, 30), loop.size(1024, 16)
    network, optimizer = training.make_wide(width, width, device, groups=2)
    frames = torch.randn(longest, width, device=device).to(torch.bfloat16)
    # Frames in each batch; the longest first, to see that it fits.
    lengths = [longest] + torch.randint(shortest, longest, (loop.warm_up + loop.steps,)).tolist()

    def step(i):
        loss = network(frames[:lengths[i]]).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
