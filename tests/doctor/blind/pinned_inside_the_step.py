# SPDX-License-Identifier: Apache-2.0
"""https://github.com/kohya-ss/musubi-tuner/pull/700

Training a model that does not fit, with some of its blocks swapped between host and GPU, became slower instead of
faster when the swapped blocks were put into pinned memory.

Cause: the memory is page-locked and unlocked again for each swap of each step; locking the pages costs more than the
faster copy saves, and the GPU has no work meanwhile.
Line: pinned_inside_the_step.py:Locked
Remedy: lock the buffer once, before training, and use it for every swap.
Trap: the obvious remedy, pinning, is what was done here: pinning in the step does not bring what pinned copies promise.
"""
import time

import torch
from torch import nn

import blind


class Locked:
    """Page-locks a tensor's memory for the time of a `with` block, and keeps the seconds that both ends of it took."""

    def __init__(self, tensor, enabled):
        self.tensor, self.enabled = tensor, enabled
        self.locking = self.unlocking = 0.0

    def __enter__(self):
        begin = time.perf_counter()
        if self.enabled:
            size = self.tensor.numel() * self.tensor.element_size()
            if int(torch.cuda.cudart().cudaHostRegister(self.tensor.data_ptr(), size, 0)) != 0:
                raise SystemExit("pinned_inside_the_step: the memory could not be page-locked")
        self.locking = time.perf_counter() - begin
        return self.tensor

    def __exit__(self, *_):
        begin = time.perf_counter()
        if self.enabled:
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())
        self.unlocking = time.perf_counter() - begin


def main():
    loop = blind.Loop("pinned_inside_the_step", "copy", steps=220)
    device = loop.device()
    cuda = device.type == "cuda"
    wait = blind.wait_for(device)
    torch.manual_seed(0)
    width, rows = loop.size(4096, 32), loop.size(8192, 8)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(loop.size(24, 3)))).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    swapped = [model[0].weight, model[1].weight]  # the blocks that live on the host between the steps
    home = torch.zeros(2, width, width, dtype=torch.bfloat16)
    home.copy_(torch.stack([w.detach() for w in swapped]))
    lock = Locked(home, cuda and loop.planted)
    once = Locked(home, cuda and loop.variant == "fixed")
    x = torch.randn(rows, width, device=device).to(torch.bfloat16)

    def swap(to_gpu):
        with lock as host, torch.no_grad():
            for weight, copy in zip(swapped, host):
                dst, src = (weight, copy) if to_gpu else (copy, weight)
                dst.copy_(src, non_blocking=True)
            wait()

    def step(i):
        if loop.variant != "healthy":  # which keeps all blocks on the GPU
            swap(to_gpu=True)
        exposed = lock.locking + lock.unlocking  # the last step ended with a wait: the GPU waits for both
        h = x
        for layer in model:
            h = h + nn.functional.silu(layer(h))
        loss = h.float().pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if loop.variant != "healthy":
            swap(to_gpu=False)
        if loop.planted:  # the second locking ran beside the GPU's work, the second unlocking did not
            loop.planted_ms.append(1e3 * (exposed + lock.unlocking))

    with once:
        loop.run(step, wait)


if __name__ == "__main__":
    main()
