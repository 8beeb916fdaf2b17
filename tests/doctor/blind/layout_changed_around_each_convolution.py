# SPDX-License-Identifier: Apache-2.0
"""github.com/tensorpack/tensorpack/issues/150 (mechanism in tensorflow/tensorflow#8286).

My ResNet trains noticeably slower than the same network elsewhere, although the GPU is reported as fully busy.

Cause: activations are kept with channels last and turned to channels first for each convolution, and back after it;
these copies move as much memory as the convolution itself.
Line: layout_changed_around_each_convolution.py:forward.
Remedy: one layout throughout (channels last, which the convolution takes as it is).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


class Block(nn.Module):
    """Takes and returns (batch, height, width, channels)."""

    def __init__(self, channels, turn):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.LayerNorm(channels)
        self.turn = turn

    def forward(self, x):
        y = x.permute(0, 3, 1, 2)
        if self.turn:
            y = y.contiguous()
        y = self.conv(y).permute(0, 2, 3, 1).contiguous()
        return x + F.relu(self.norm(y))


def main():
    loop = blind.Loop("layout_changed_around_each_convolution", "memory", steps=300)
    device = loop.device()
    torch.manual_seed(0)
    # Healthy: as fixed, with wider layers, where the convolutions are nearly everything.
    healthy = loop.variant == "healthy"
    channels, batch = loop.size(512 if healthy else 128, 8), loop.size(64 if healthy else 256, 2)
    side, layers = loop.size(28 if healthy else 56, 8), loop.size(8, 2)
    model = nn.Sequential(*[Block(channels, loop.planted) for _ in range(layers)]).to(device, torch.bfloat16)
    if not loop.planted:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    images = torch.randn(2, batch, side, side, channels, device=device, dtype=torch.bfloat16)
    target = torch.randn(batch, channels, device=device)
    torch.backends.cudnn.benchmark = True

    def step(i):
        pooled = model(images[i % 2]).mean((1, 2)).float()
        loss = F.mse_loss(pooled, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
