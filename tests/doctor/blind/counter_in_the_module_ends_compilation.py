# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/128319 (also pytorch/pytorch#154867, meta-pytorch/torchrec#4338)

The model is compiled, and the first steps take long, as expected. After that it is no faster than without compiling,
and once there is a warning that some limit has been hit. The model only counts how often it was called.

Cause: the compiler takes an integer attribute of a module for a constant. As it changes in every call, the model is
compiled anew eight times, then given up: from there on it runs operation by operation, hundreds of small kernels that
take longer to launch than to run.
Line: counter_in_the_module_ends_compilation.py:forward (of Gated, which launches them; Model.forward counts).
Remedy: the training loop counts the calls.
Trap: nobody looks for launches in a compiled model.
"""
import torch
from torch import nn

import blind
import training


class Gated(nn.Module):
    """A small layer in many operations: two norms, a gate, a periodic activation, a scaled sum."""

    def __init__(self, width):
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.pitch, self.weight = nn.Parameter(torch.ones(width)), nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        centred = x - x.mean(dim=1, keepdim=True)
        normed = centred * torch.rsqrt(centred.square().mean(dim=1, keepdim=True) + 1e-5)
        value, gate = self.enter(normed * self.scale + self.shift).chunk(2, dim=1)
        value = value + torch.sin(self.pitch * value).square() / (self.pitch.abs() + 1e-3)
        value = value * torch.sigmoid(gate) + 0.5 * torch.tanh(gate)
        return x + self.weight * self.leave(value).clamp(-8, 8)


class Model(nn.Module):
    def __init__(self, width, layers, counts):
        super().__init__()
        self.layers, self.counts, self.calls = nn.ModuleList(Gated(width) for _ in range(layers)), counts, 0

    def forward(self, x):
        if self.counts:
            self.calls += 1
        for layer in self.layers:
            x = layer(x)
        return x


def main():
    loop = blind.Loop("counter_in_the_module_ends_compilation", "launch", steps=1000, warm_up=30)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 200)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width = loop.size(512, 4), loop.size(512, 8)
    with torch.device(device):
        model = Model(width, loop.size(8, 1), counts=loop.planted)
        x, y = torch.randn(rows, width), torch.randn(rows, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend="inductor" if device.type == "cuda" else "eager")
    seen = 0

    def step(i):
        nonlocal seen
        seen += 1
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(compiled(x).float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
