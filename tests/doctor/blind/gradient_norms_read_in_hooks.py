# SPDX-License-Identifier: Apache-2.0
"""github.com/allenai/OLMo/pull/326

Collecting metrics of the gradients slows a run down a lot, in particular where the model is cut down to two layers to
try things out.

Cause: a hook at each parameter computes the norm of its gradient and reads it back at once, so the backward pass
waits for the GPU at every parameter and never launches ahead.
Line: gradient_norms_read_in_hooks.py:on_gradient
Remedy: the hooks leave the norms on the GPU; they are stacked and read every fifty steps.
"""
import torch
from torch import nn

import blind
import training


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 2 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class GradientNorms:
    """Keeps the norm of each parameter's gradient, for the log."""

    def __init__(self, model, read_at_once):
        self.read_at_once, self.latest, self.history = read_at_once, {}, []
        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: self.on_gradient(name, gradient))

    def on_gradient(self, name, gradient):
        norm = gradient.detach().float().norm()
        self.latest[name] = norm.item() if self.read_at_once else norm

    def log(self, i):
        if self.read_at_once:
            self.history.append(dict(self.latest))
        elif i % 50 == 49:
            self.history.append(dict(zip(self.latest, torch.stack(list(self.latest.values())).tolist())))
        del self.history[:-100]


def main():
    loop = blind.Loop("gradient_norms_read_in_hooks", "sync", steps=300)
    device = loop.device()
    torch.manual_seed(0)
    width = loop.size(1280, 32)
    rows = loop.size(24576 if loop.variant == "healthy" else 6144, 8)
    model = nn.Sequential(*(Layer(width) for _ in range(loop.size(16, 3))))
    model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(rows, width, device=device, dtype=next(model.parameters()).dtype)
    norms = GradientNorms(model, read_at_once=False)
    span = training.GpuSpan(loop, device)

    def forward_backward():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).float().square().mean()
        loss.backward()

    span.due = span.queued(forward_backward)
    norms.read_at_once = loop.planted

    def step(i):
        span.begin()
        forward_backward()
        span.end()
        norms.log(i)
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
