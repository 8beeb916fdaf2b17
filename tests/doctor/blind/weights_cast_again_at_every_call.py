# SPDX-License-Identifier: Apache-2.0
"""https://github.com/sgl-project/sglang-omni/pull/2262 (also huggingface/diffusers#511)

Speech is generated in ten steps, each a pass through the same network, whose weights are float32 and which runs under
autocast to bfloat16. Of 17044 kernels a call, 3220 do nothing but cast weights, the same ones over and over.

Cause: autocast keeps no cast weights in inference mode, so each layer reads its float32 weights and writes them as
bfloat16 in every pass, three times the traffic of the product itself, which has few rows.
Line: weights_cast_again_at_every_call.py:forward (of Block)
Remedy: the linear layers are cast once, when the model is loaded; the numbers are the same.
"""
import torch
from torch import nn

import blind


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up, self.down = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, shift):
        h = self.norm(x) + shift
        return x + 0.1 * self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Flow(nn.Module):
    """The velocity at which noise becomes sound, at a time between 0 and 1."""

    def __init__(self, width, depth):
        super().__init__()
        self.time = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x, waves):
        shift = self.time(waves)
        for block in self.blocks:
            x = block(x, shift)
        return x


def main():
    loop = blind.Loop("weights_cast_again_at_every_call", "precision", steps=140)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    width, depth, euler_steps = loop.size(6144, 32), loop.size(20, 2), 2
    frames = loop.size(4096 if healthy else 384, 8)
    with torch.device(device):
        model = Flow(width, depth).eval().requires_grad_(False)
        noise = torch.randn(4, frames, width)
        angles = torch.linspace(0, 1, euler_steps)[:, None] * torch.arange(1, 65)
    if not loop.planted:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.to(torch.bfloat16)
    waves, levels = torch.sin(angles), []
    if healthy:
        loop.steps = min(loop.steps, 60)

    @torch.inference_mode()
    def generate(x):
        for k in range(euler_steps):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                velocity = model(x, waves[k])
            x = x + velocity.float() / euler_steps
        return x

    def step(i):
        levels.append(generate(noise[i % len(noise)]).square().mean())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
