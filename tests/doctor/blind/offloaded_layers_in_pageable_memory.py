# SPDX-License-Identifier: Apache-2.0
"""https://github.com/ostris/ai-toolkit/pull/813

Training an adapter for a model that does not fit, with some of its layers kept on the host, takes twenty seconds a step
on the newest card; the transfer of the layers was accepted as the price of it.

Cause: the offloaded weights lie in pageable memory, so each copy goes through a small buffer of the driver at a
fraction of the link's rate, and the host waits for it, and the GPU too.
Line: offloaded_layers_in_pageable_memory.py:fetch
Remedy: page-locked once before training, and copied one after another on a stream of their own, beside the computing.
"""
import torch
from torch import nn

import blind
import training


class Frozen(nn.Module):
    """A frozen layer with a small trained scale. Its weights live on the GPU or, offloaded, on the host."""

    def __init__(self, width, device, dtype, offloaded, pinned):
        super().__init__()
        home = torch.device("cpu") if offloaded else device
        self.home = [(torch.randn(2 * width, width, device=device) / width**0.5).to(home, dtype),
                     (torch.randn(width, 2 * width, device=device) / width**0.5 / 2).to(home, dtype)]
        if offloaded and pinned:
            self.home = [weight.pin_memory() for weight in self.home]
        self.offloaded, self.here, self.ready = offloaded, None if offloaded else self.home, None
        self.scale = nn.Parameter(torch.full((width,), 0.1, device=device, dtype=dtype))

    def fetch(self, device, side):
        """Copies the weights to the GPU: on the stream `side` if there is one, else now."""
        if side is None:
            self.here = [weight.to(device) for weight in self.home]
            return
        with torch.cuda.stream(side):
            self.here = [weight.to(device, non_blocking=True) for weight in self.home]
            self.ready = side.record_event()

    def forward(self, x):
        if self.ready is not None:
            torch.cuda.current_stream().wait_event(self.ready)
            for weight in self.here:
                weight.record_stream(torch.cuda.current_stream())
        up, down = self.here
        return x + self.scale * nn.functional.linear(nn.functional.silu(nn.functional.linear(x, up)), down)


class Model(nn.ModuleList):
    def forward(self, x, side):
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
            for layer in self:
                if layer.offloaded:
                    layer.fetch(x.device, side)
        for layer in self:
            if layer.offloaded and side is None:
                layer.fetch(x.device, None)
            x = layer(x)
        return x

    def let_go(self):
        for layer in self:
            if layer.offloaded:
                layer.here = None


def main():
    loop = blind.Loop("offloaded_layers_in_pageable_memory", "copy", steps=150)
    device = loop.device()
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    width, tokens, count = loop.size(3072, 16), loop.size(8192, 8), loop.size(12, 3)
    dtype = torch.bfloat16 if cuda else torch.float32
    # The offloaded layers come last: their copies have the time of the layers before them.
    away = 0 if loop.variant == "healthy" else count // 4
    layers = [Frozen(width, device, dtype, k >= count - away, cuda and not loop.planted) for k in range(count)]
    model = Model(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side = torch.cuda.Stream() if cuda and loop.variant == "fixed" else None
    x = torch.randn(tokens, width, device=device, dtype=dtype)
    span = training.GpuSpan(loop, device)

    def train(model):
        loss = model(x, side).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    if loop.planted:  # what the step takes with all weights at hand
        resident = [Frozen(width, device, dtype, False, False) for _ in range(away)]
        whole = Model(layers[:count - away] + resident)
        span.due = span.queued(lambda: train(whole))
        del whole, resident

    def step(i):
        span.begin()
        train(model)
        span.end()
        model.let_go()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
