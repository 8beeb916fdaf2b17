# SPDX-License-Identifier: Apache-2.0
"""https://github.com/icon-lab/SynDiff/issues/43 https://github.com/Lightning-AI/pytorch-lightning/issues/17359

Training is far slower than others report on the same card, and the utilisation shown goes up and down all the time.

Cause: autograd's anomaly mode, left on from a hunt for NaNs, tests each gradient of the backward pass and reads the
answer back, so the queue is drained after every operation; forward operations also record their stacks.
Line: anomaly_mode_left_on.py:step
Remedy: switch it off.
"""
import torch
from torch import nn

import blind


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dense = nn.Linear(width, width)

    def forward(self, x):
        return x + nn.functional.silu(self.dense(self.norm(x)))


def main():
    loop = blind.Loop("anomaly_mode_left_on", "sync", steps=300)
    device = loop.device()
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(loop.planted)  # "only for debugging"
    width = loop.size(2048, 32)
    rows = loop.size(16384 if loop.variant == "healthy" else 6144, 8)
    model = nn.Sequential(*(Residual(width) for _ in range(loop.size(40, 4)))).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    pool = torch.randn(4, rows, width, generator=generator).to(device, torch.bfloat16)

    def step(i):
        x = pool[i % 4]
        noise = torch.randn_like(x)
        loss = nn.functional.mse_loss(model(x + noise).float(), noise.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
