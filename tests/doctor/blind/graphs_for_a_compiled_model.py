# SPDX-License-Identifier: Apache-2.0
"""https://github.com/karpathy/build-nanogpt/issues/6 (also goodfire-ai/spd#322)

torch.compile with mode="reduce-overhead" records CUDA graphs, and benchmarks show 70 to 100% more speed with it than
with the plain one. In this training it gives slightly fewer tokens a second than before.

Cause: none. The compiled model launches a few large products, and the GPU is never without work.
Line: graphs_for_a_compiled_model.py:step
Remedy: there is none to find; `fixed` does the obvious thing and compiles for CUDA graphs.
Trap: graphs take away the time of launching, of which there is none to be seen here.
"""
import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # other programs start beside this one

import torch
from torch import nn

import blind
import training


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)
        self.third = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + self.third(nn.functional.silu(self.second(self.first(self.norm(x)))))


def main():
    loop = blind.Loop("graphs_for_a_compiled_model", "none", steps=220)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width = loop.size(16384, 16), loop.size(8192, 16)
    with torch.device(device):
        model = Block(width).to(torch.bfloat16)
        texts = torch.randn(4, rows, width).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    backend = {} if device.type == "cuda" else {"backend": "eager"}  # a CPU need not have a compiler
    if backend or loop.planted:
        compiled = torch.compile(model, **backend)
    else:
        compiled = torch.compile(model, mode="reduce-overhead")
    text = torch.empty_like(texts[0])

    def step(i):
        text.copy_(texts[i % 4])
        optimizer.zero_grad(set_to_none=True)  # before the forward pass: a graph reuses the memory of its results
        compiled(text).float().square().mean().backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
