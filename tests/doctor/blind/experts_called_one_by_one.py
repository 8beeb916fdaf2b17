# SPDX-License-Identifier: Apache-2.0
"""https://github.com/unslothai/unsloth/issues/2582 (also QwenLM/Qwen3#736, databricks/dbrx#6)

Fine-tuning the mixture of experts is extremely slow and the utilisation of the GPU is 10 to 20%, whereas a dense model
of the same total size uses the GPU fully under the same conditions, and takes less time for a step.

Cause: the experts of a layer are called in a Python loop: for each of them a handful of tiny kernels, and twice as many
in the backward pass, which take longer to launch than to run.
Line: experts_called_one_by_one.py:ListedExperts.forward
Remedy: the weights of all experts in one tensor, and a batched product for all of them.
"""
import torch
from torch import nn

import blind
import training


class Expert(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class ListedExperts(nn.Module):
    def __init__(self, experts, width, inner):
        super().__init__()
        self.experts = nn.ModuleList(Expert(width, inner) for _ in range(experts))

    def forward(self, x):
        """x: (experts, rows, width)."""
        return torch.stack([expert(rows) for expert, rows in zip(self.experts, x)])


class StackedExperts(nn.Module):
    def __init__(self, experts, width, inner):
        super().__init__()
        self.gate, self.up = (nn.Parameter(torch.randn(experts, width, inner) / width**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, x):
        return torch.bmm(nn.functional.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up), self.down)


class Mixture(nn.Module):
    """Each expert takes the tokens that suit it best, as many as every other."""

    def __init__(self, experts, width, inner, kind):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = kind(experts, width, inner)

    def forward(self, x):
        scores = self.router(x).float().softmax(dim=1)
        weights, chosen = scores.t().topk(x.shape[0] // scores.shape[1], dim=1)
        out = self.experts(x[chosen]) * weights[..., None].to(x.dtype)
        return x.index_add(0, chosen.flatten(), out.flatten(0, 1))


def main():
    loop = blind.Loop("experts_called_one_by_one", "launch", steps=260)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    tokens, narrow, inner, experts = loop.size(8192, 16), loop.size(1024, 8), loop.size(256, 8), loop.size(64, 4)
    wide, kind = loop.size(4096, 16), ListedExperts if loop.planted else StackedExperts
    with torch.device(device):
        layers = [Mixture(experts, narrow, inner, kind) for _ in range(loop.size(3, 1))]
        body, _ = training.make_model(loop.size(8, 1), wide, device)
        model = nn.Sequential(*layers, nn.Linear(narrow, wide), body).to(torch.bfloat16)
        x = torch.randn(tokens, narrow).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loop.run(lambda i: training.train(model, optimizer, x), blind.wait_for(device))


if __name__ == "__main__":
    main()
