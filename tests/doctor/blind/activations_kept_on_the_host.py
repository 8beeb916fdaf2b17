# SPDX-License-Identifier: Apache-2.0
"""https://github.com/meta-llama/llama-cookbook/pull/115 (also pytorch/torchtitan#2375, pytorch/torchtitan#2379)

To be on the safe side with memory I have switched on the offloading of activations, with pinned memory. It works, but a
training step takes several times as long, and the new card has far more memory than the model needs.

Cause: around every second block, all that the backward pass needs is copied to the host, weights too, and back again.
The copies lie in the stream of the computation, and nothing is computed meanwhile.
Line: activations_kept_on_the_host.py:pack and unpack
Remedy: there is room enough on the GPU, so the activations stay there.
"""
import contextlib

import torch

import blind
import training


class OnTheHost(torch.autograd.graph.saved_tensors_hooks):
    """Like the library's save_on_cpu(pin_memory=True); the span takes the time of the copies."""

    def __init__(self, device, span):
        def pack(tensor):
            span.begin()
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
            kept.copy_(tensor)
            span.end()
            return kept

        def unpack(kept):
            span.begin()
            tensor = kept.to(device, non_blocking=True)
            span.end()
            return tensor

        super().__init__(pack, unpack)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.products = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        for product in self.products:
            x = product(x)
        return torch.relu(x)


def main():
    loop = blind.Loop("activations_kept_on_the_host", "copy", steps=150)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width = loop.size(8192, 8), loop.size(4096, 16)
    with torch.device(device):
        blocks = torch.nn.ModuleList(Block(width) for _ in range(loop.size(6, 2))).to(torch.bfloat16)
        x = torch.randn(rows, width).to(torch.bfloat16)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-3)
    span = training.GpuSpan(loop, device)

    def model(x):
        for n, block in enumerate(blocks):
            with OnTheHost(device, span) if loop.planted and n % 2 else contextlib.nullcontext():
                x = block(x)
        return x

    def step(i):
        loss = model(x).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
