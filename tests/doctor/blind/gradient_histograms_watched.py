# SPDX-License-Identifier: Apache-2.0
"""https://github.com/wandb/wandb/issues/2268 (also wandb/wandb#3701)

Since the experiment tracker watches the model the code takes far longer to run, and every iteration takes longer than
with the same script before; the loss curves are the same.

Cause: a hook at each parameter looks up the least and the largest value of the gradient and counts a histogram between
them, and each of the three answers is waited for, so the backward pass never launches ahead.
Line: gradient_histograms_watched.py:on_gradient
Remedy: the histograms are counted on the GPU between fixed bounds, left there, and read after every hundred steps.
"""
import torch

import blind
import training

BINS, BOUND = 64, 1e-3


class Watch:
    """Histograms of the gradients of a model's weights and biases."""

    def __init__(self, model, asks, device):
        self.asks = asks
        self.counts = {name: torch.zeros(BINS, device=device) for name, _ in model.named_parameters()}
        self.extremes = {name: torch.zeros(2, device=device) for name, _ in model.named_parameters()}
        self.shown = {}
        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda grad, name=name: self.on_gradient(name, grad))

    def on_gradient(self, name, grad):
        grad = grad.detach().float()
        if self.asks:
            low, high = grad.min().item(), grad.max().item()
            counts = torch.histc(grad, BINS, low, high if high > low else low + 1.0)
            self.shown[name] = (low, high, counts.cpu().tolist())
        else:
            torch.amin(grad.view(-1), 0, out=self.extremes[name][0])
            torch.amax(grad.view(-1), 0, out=self.extremes[name][1])
            self.counts[name].copy_(torch.histc(grad, BINS, -BOUND, BOUND))

    def read(self):
        for name in self.counts:
            low, high = self.extremes[name].tolist()
            self.shown[name] = (low, high, self.counts[name].tolist())


def main():
    loop = blind.Loop("gradient_histograms_watched", "sync", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    # Narrow and long: a histogram of 262144 weights takes next to nothing beside the products of 98304 rows.
    model, optimizer = training.make_model(loop.size(24, 2), loop.size(512, 8), device)
    x = torch.randn(loop.size(98304, 16), loop.size(512, 8), device=device).to(next(model.parameters()).dtype)
    watch = Watch(model, False, device)
    span = training.GpuSpan(loop, device)
    blind.take_gpu()
    span.due = span.queued(lambda: training.train(model, optimizer, x))  # with the counting, without the questions
    watch.asks = loop.planted

    def step(i):
        span.begin()
        training.train(model, optimizer, x)
        span.end()
        if not loop.planted and i % 100 == 99:
            watch.read()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
