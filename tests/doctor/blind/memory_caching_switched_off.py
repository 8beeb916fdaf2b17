# SPDX-License-Identifier: Apache-2.0
"""https://github.com/chelsea0x3b/dfdx/issues/678

With PYTORCH_NO_CUDA_MEMORY_CACHING=1 the forward pass takes three times as long and the backward pass six times. (It
had been set to find an invalid access with the sanitizer, and stayed in the environment afterwards.)

Cause: without the cache each tensor is a cudaMalloc, and when it is dropped a cudaFree, which waits for the GPU.
Line: memory_caching_switched_off.py:step, at each tensor that it makes and drops
Remedy: the variable is not set.
"""
import os
import sys

if "fixed" not in sys.argv and "healthy" not in sys.argv:  # read when PyTorch is imported
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

import blind
import training


def main():
    loop = blind.Loop("memory_caching_switched_off", "allocation", steps=280)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    rows, width = loop.size(8192, 16), loop.size(8192, 16)
    network, optimizer = training.make_wide(width, width, device)
    with torch.device(device):
        batches = torch.randn(4, rows, width).to(torch.bfloat16)

    def step(i):
        training.train(network, optimizer, batches[i % 4])

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
