# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/101291

Switching AdamW to its fused form should have made training of a U-Net-like network faster, but the time of a step
stayed where it was.

Cause: none. The GPU is busy all the time; the optimizer's launches are hidden behind the queue of the backward pass.
Line: fused_adam_that_cannot_help.py:step
Remedy: there is none to find in the loop; `fixed` does the obvious thing and sets `fused=True`.
Trap: the fused optimizer saves launches that nobody waits for; its kernels are less than a few per cent of the step.
"""
import torch
from torch import nn

import blind


class Block(nn.Module):
    """Four parameters a block, as in the residual blocks of a U-Net."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(min(32, channels), channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv(nn.functional.silu(self.norm(x)))


class SmallUNet(nn.Module):
    def __init__(self, channels, blocks):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.ModuleList(nn.Sequential(*(Block(channels) for _ in range(blocks))) for _ in range(3))
        self.up = nn.ModuleList(nn.Sequential(*(Block(channels) for _ in range(blocks))) for _ in range(3))
        self.last = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x):
        x = self.first(x)
        kept = []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        for stage in self.up:
            x = stage(nn.functional.interpolate(x, scale_factor=2) + kept.pop())
        return self.last(x)


def main():
    loop = blind.Loop("fused_adam_that_cannot_help", "none", steps=300)
    device = loop.device()
    torch.manual_seed(0)
    batch = loop.size(48 if loop.variant == "healthy" else 24, 2)
    side, channels = loop.size(64, 16), loop.size(256, 8)
    model = SmallUNet(channels, loop.size(9, 1)).to(device, torch.bfloat16)
    fused = {} if loop.planted or device.type != "cuda" else {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, batch, 3, side, side, generator=generator).to(device, torch.bfloat16)

    def step(i):
        clean = images[i % 4]
        noise = torch.randn_like(clean)
        loss = (model(clean + noise).float() - noise.float()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
