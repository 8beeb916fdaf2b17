# SPDX-License-Identifier: Apache-2.0
"""https://github.com/ecmwf/WeatherGenerator/pull/2551 (also ultralytics/ultralytics#25315)

Keeping an exponential average of the weights makes every step a good deal longer: an update of the average takes a
hundred milliseconds, and ten when it is written for all weights at once.

Cause: the average is updated tensor by tensor, three tiny kernels for each of 768 vectors, launched in a Python
loop that takes longer than the recorded training step beside it.
Line: averaged_weights_one_by_one.py:update_one_by_one
Remedy: a foreach operation, one launch for many weights.
"""
import torch
from torch import nn

import blind
import training


class FieldNetwork(nn.Module):
    """A vector of weights for each of many fields, which lie one after the other in memory, and a common network."""

    def __init__(self, fields, width, depth):
        super().__init__()
        self.fields = nn.Parameter(0.02 * torch.randn(fields, width))
        self.body = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth)))

    def forward(self, x):
        return self.body(x @ self.fields)

    def by_name(self):
        weights = {f"field.{k}": row for k, row in enumerate(self.fields.detach().unbind())}
        weights.update((name, p.detach()) for name, p in self.body.named_parameters())
        return weights


@torch.no_grad()
def update_one_by_one(average, weights, decay):
    for name, weight in weights.items():
        average[name] = decay * average[name] + (1 - decay) * weight


@torch.no_grad()
def update_at_once(average, weights, decay):
    torch._foreach_lerp_(list(average.values()), list(weights.values()), 1 - decay)


def main():
    loop = blind.Loop("averaged_weights_one_by_one", "launch", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    fields, width, rows = loop.size(768, 8), loop.size(4096, 16), loop.size(8192, 8)
    with torch.device(device):
        model = FieldNetwork(fields, width, loop.size(4, 1)).to(torch.bfloat16)
        x = torch.randn(rows, fields).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    weights = model.by_name()
    average = {name: weight.clone() for name, weight in weights.items()}
    update = update_one_by_one if loop.planted else update_at_once
    train = training.recorded(lambda: training.train(model, optimizer, x), device)

    def step(i):
        train()
        update(average, weights, 0.999)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
