# SPDX-License-Identifier: Apache-2.0
"""https://github.com/kohya-ss/sd-scripts/issues/1156 (also huggingface/peft#2421)

The adapters are made without a data type and so are in float32, whatever the model is in. As an experiment I made them
bfloat16: the training takes 4.5 s a step in place of 6.8 s, and I cannot see that it has become worse.

Cause: the two small products of each adapter are computed in float32, outside the tensor cores, and the activations
are converted there and back.
Line: adapters_kept_in_float32.py:Adapted.forward
Remedy: adapters in the data type of the model.
"""
import torch
from torch import nn

import blind
import training


class Adapted(nn.Module):
    """A frozen product and a trained one of low rank."""

    def __init__(self, width, rank, dtype):
        super().__init__()
        self.base = nn.Linear(width, width, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, width, bias=False, dtype=dtype)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        change = self.up(self.down(x.to(self.down.weight.dtype)))
        return self.base(x) + change.to(x.dtype)


def main():
    loop = blind.Loop("adapters_kept_in_float32", "precision", steps=260)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width, rank = loop.size(8192, 16), loop.size(4096, 16), loop.size(96, 4)
    dtype = torch.float32 if loop.planted else torch.bfloat16
    with torch.device(device):
        layers = [part for _ in range(loop.size(12, 2)) for part in (Adapted(width, rank, dtype), nn.ReLU())]
        model = nn.Sequential(*layers)
        x = torch.randn(rows, width).to(torch.bfloat16)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    loop.run(lambda i: training.train(model, optimizer, x), blind.wait_for(device))


if __name__ == "__main__":
    main()
