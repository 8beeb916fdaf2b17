# SPDX-License-Identifier: Apache-2.0
"""https://github.com/lucidrains/ema-pytorch/issues/5

Since I keep a moving average of the model's weights, the GPU is hardly used during training. The average is updated
on the CPU, going over all parameters of the model that is trained. Does it have to be that slow?

Cause: after every step each parameter is copied to the host, into ordinary memory, and the host waits for it; there
it's mixed into the average. Neither the copies nor the mixing run while the GPU has anything else to do.
Line: average_of_the_weights_kept_on_the_host.py:update (of Average).
Remedy: the average is put where the model is, on the GPU, and no parameter leaves it.
"""
import torch
from torch import nn

import blind
import training


class Average:
    """A moving average of a model's parameters, on the device of its own choice."""

    def __init__(self, model, device, beta=0.999):
        self.parameters, self.device, self.beta = list(model.parameters()), device, beta
        self.averages = [parameter.detach().to(device, copy=True) for parameter in self.parameters]

    @torch.no_grad()
    def update(self):
        for average, parameter in zip(self.averages, self.parameters):
            average.lerp_(parameter.detach().to(self.device), 1 - self.beta)


class Bottleneck(nn.Module):
    """A block of a network that denoises images."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, x):
        return x + self.second(torch.relu(self.first(self.norm(x))))


def main():
    loop = blind.Loop("average_of_the_weights_kept_on_the_host", "copy", steps=160)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    channels, side, rows = loop.size(512, 8), loop.size(32, 4), loop.size(64, 2)
    with torch.device(device):
        blocks = [Bottleneck(channels) for _ in range(loop.size(10, 1))]
        model = nn.Sequential(nn.Conv2d(4, channels, 3, padding=1), *blocks, nn.Conv2d(channels, 4, 3, padding=1))
        clean = torch.randn(rows, 4, side, side).to(memory_format=torch.channels_last)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    average = Average(model, torch.device("cpu") if loop.planted else device)
    span = training.GpuSpan(loop, device)

    def step(i):
        noise = torch.randn_like(clean)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            predicted = model(clean + noise)
        loss = (predicted.float() - noise).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        span.begin()
        average.update()
        span.end()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
