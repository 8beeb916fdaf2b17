# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Dao-AILab/quack/issues/150

Training on batches of packed texts keeps stopping for seconds. The log says that the compiled model was compiled again
because the longest text of the batch had another length than any before.

Cause: `torch.compile(model, dynamic=False)` makes code for one length; each length that is new is traced and compiled
while the GPU waits.
Line: compiled_again_for_every_length.py:work
Remedy: pad to the one length that the training uses.
"""
import os
import time

# A length that is new to this process is compiled, whatever an earlier one left on the disk.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
from torch import nn

import blind
import training

EVERY = 100  # steps from one new length to the next


class Block(nn.Module):
    """Three products for each norm: the code made for them is small, the work is not."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)
        self.third = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + self.third(nn.functional.silu(self.second(self.first(self.norm(x)))))


def main():
    loop = blind.Loop("compiled_again_for_every_length", "recompile", steps=220)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, longest, width = loop.size(32, 2), loop.size(512, 16), loop.size(4096, 16)
    with torch.device(device):
        model = nn.Sequential(*(Block(width) for _ in range(loop.size(2, 1)))).to(torch.bfloat16)
        text = torch.randn(batch, longest, width).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(model, dynamic=False, backend="inductor" if device.type == "cuda" else "eager")
    wait = blind.wait_for(device)

    def work(length):
        training.train(compiled, optimizer, text[:, :length])

    def timed(length):
        wait()
        begin = time.perf_counter()
        work(length)
        wait()
        return 1e3 * (time.perf_counter() - begin)

    def step(i):
        part, at = divmod(i + loop.size(60, 0), loop.size(EVERY, 2))
        length = longest - 8 * part if loop.planted else longest
        if not loop.planted or 1 < at:
            work(length)
            if loop.planted:
                loop.planted_ms.append(0.0)
        elif at == 0:
            loop.planted_ms.append(timed(length))
        else:  # the same length again: what the step before it took without the compiler
            again = timed(length)
            if loop.planted_ms:
                loop.planted_ms[-1] -= again
            loop.planted_ms.append(0.0)

    loop.run(step, wait)


if __name__ == "__main__":
    main()
