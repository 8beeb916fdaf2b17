# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Lightning-AI/pytorch-lightning/issues/189 (also pull request 3257 there)

The trainer logs how much memory of the GPU is in use. This is useful, but on our cluster, where nvidia-smi answers
slowly, it makes training almost ten times slower.

Cause: before and after each batch a new process of nvidia-smi is started, and the training waits until it has loaded
the driver's library, has asked it, and has ended.
Line: nvidia_smi_asked_around_every_batch.py:memory_used (its call of subprocess.run).
Remedy: the log takes what PyTorch's own allocator counts, which costs microseconds and starts nothing.
"""
import shutil
import subprocess
import sys

import torch

import blind
import training

QUERY = ["--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits", "--id=0"]


def memory_used(command):
    """Mebibytes in use, as the driver says."""
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(said.split(",")[0])


def memory_reserved(device):
    """Mebibytes in use, as PyTorch counts."""
    return torch.cuda.memory_reserved() / 2**20 if device.type == "cuda" else 0.0


def main():
    loop = blind.Loop("nvidia_smi_asked_around_every_batch", "host", steps=200)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    command = [shutil.which("nvidia-smi"), *QUERY]
    if loop.small:  # a process that prints such a line, whether or not there is a GPU
        command = [sys.executable, "-c", "print('1024, 50')"]
    if not command[0]:
        raise SystemExit(f"{loop.name}: nvidia-smi is not installed; this program starts it")
    rows, width = loop.size(4096, 16), loop.size(4096, 16)
    model, optimizer = training.make_wide(width, width, device, groups=loop.size(4, 1))
    x = torch.randn(rows, width, device=device).to(torch.bfloat16)
    gaps = training.GpuGaps(loop, device)
    ask = (lambda: memory_used(command)) if loop.planted else (lambda: memory_reserved(device))
    log = []

    def step(i):
        before = ask()
        gaps.begin()
        training.train(model, optimizer, x)
        gaps.finish()
        log.append((i, before, ask()))

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
