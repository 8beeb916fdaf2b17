# SPDX-License-Identifier: Apache-2.0
"""https://github.com/arimousa/DDAD/issues/29

The U-Net sets its data type to float32 by itself, whatever is asked for. Is that necessary? With mixed precision the
training is clearly faster and the results are the same.

Cause: all convolutions and what lies between them run in float32; TF32 is on, but half the width would be enough.
Line: unet_kept_in_float32.py:forward (of Denoiser)
Remedy: autocast to bfloat16.
"""
import torch
from torch import nn

import blind
import training


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.second(nn.functional.silu(self.first(self.norm(x))))


class Denoiser(nn.Module):
    """Down, across and up again, with a shortcut."""

    def __init__(self, channels, blocks, dtype):
        super().__init__()
        self.dtype = dtype
        self.first, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)
        self.down, self.up = (nn.Sequential(*(Block(channels) for _ in range(blocks))) for _ in range(2))

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            kept = self.down(self.first(x))
            across = nn.functional.avg_pool2d(kept, 2)
            return self.last(self.up(kept + nn.functional.interpolate(across, scale_factor=2)))


def main():
    loop = blind.Loop("unet_kept_in_float32", "precision", steps=220)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    batch, side, channels = loop.size(16, 1), loop.size(64, 8), loop.size(384, 8)
    with torch.device(device):
        model = Denoiser(channels, loop.size(3, 1), torch.float32 if loop.planted else torch.bfloat16)
        images = torch.randn(4, batch, 3, side, side)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(i):
        clean = images[i % 4].contiguous(memory_format=torch.channels_last)
        noise = torch.randn_like(clean)
        loss = nn.functional.mse_loss(model(clean + noise).float(), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
