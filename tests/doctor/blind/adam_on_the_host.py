# SPDX-License-Identifier: Apache-2.0
"""https://github.com/deepspeedai/DeepSpeed/issues/6834

With the optimizer offloaded to the host, most of a step goes to its update and the GPU reaches a small part of the
speed it has without.

Cause: Adam runs on the CPU cores between the copy of the gradients to the host and the copy of the weights back.
Line: adam_on_the_host.py:update
Remedy: keep the optimizer's state on the GPU (it fits here) and update there.
"""
import time

import torch
from torch import nn

import blind


def main():
    loop = blind.Loop("adam_on_the_host", "host", steps=150)
    device = loop.device()
    torch.manual_seed(0)
    width = loop.size(2048, 32)
    rows = loop.size(131072 if loop.variant == "healthy" else 98304, 16)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(loop.size(5, 2)))).to(device, torch.bfloat16)
    home = torch.device("cpu") if loop.planted else device
    masters = [p.detach().to(home, torch.float32, copy=True) for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=1e-5)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, width, generator=generator).to(device, torch.bfloat16)

    def update():
        """Gradients to where the masters live, Adam there, the new weights back."""
        for master, p in zip(masters, model.parameters()):
            master.grad = p.grad.to(home, torch.float32)
            p.grad = None
        begin = time.perf_counter()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters()):
                p.copy_(master)
        if loop.planted:  # the gradients have arrived: the GPU is idle (as it was for their copy)
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))

    def step(i):
        h = x
        for layer in model:
            h = h + nn.functional.relu(layer(h))
        h.float().pow(2).mean().backward()
        update()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
