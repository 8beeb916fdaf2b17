# SPDX-License-Identifier: Apache-2.0
"""github.com/allenai/allennlp/pull/4929.

By the tuning guide every size should be a multiple of 8 for the tensor cores; our token axis is not, so padding it
ought to make mixed-precision training faster.

Cause: none. The model spends its time in norms, gates and additions, which run at the speed of memory at any length.
Line: token_count_not_a_multiple_of_8.py:forward.
Remedy: `fixed` pads the token axis from 1023 to 1024.
Trap: the obvious remedy brings nothing (the thread saw no significant change): the odd axis is no inner size of a
large product, and the products are a small share.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


class Mixer(nn.Module):
    """Mixes neighbouring tokens by gates; one thin product for each layer."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Parameter(torch.zeros(width))
        self.down, self.up = nn.Linear(width, width // 16), nn.Linear(width // 16, width)

    def forward(self, x):
        y = self.norm(x)
        y = y + torch.sigmoid(self.gate) * torch.roll(y, 1, dims=1)
        return x + torch.tanh(y) * F.gelu(self.up(self.down(y)))


def main():
    loop = blind.Loop("token_count_not_a_multiple_of_8", "none", steps=300)
    device = loop.device()
    torch.manual_seed(0)
    width, batch, tokens = loop.size(1024, 32), loop.size(48, 2), loop.size(1023, 15)
    model = nn.Sequential(*[Mixer(width) for _ in range(loop.size(6, 2))]).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    # Healthy has whole sequences of the padded length; fixed pads each batch as it comes.
    x = torch.randn(2, batch, tokens + (loop.variant == "healthy"), width, device=device, dtype=torch.bfloat16)

    def step(i):
        batch_i = x[i % 2]
        if loop.variant == "fixed":
            batch_i = F.pad(batch_i, (0, 0, 0, 1))
        loss = model(batch_i)[:, :tokens].float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
