# SPDX-License-Identifier: Apache-2.0
"""https://github.com/AUTOMATIC1111/stable-diffusion-webui/pull/6510 (the option also in huggingface/diffusers#1590)

One version of an image generator gave black pictures in half precision, so its attention was set to be computed in
full precision. The setting has been kept for all models since, and pictures take several times as long.

Cause: queries, keys and values are widened to float32 in each layer; the attention then runs in a kernel for float32,
which uses a fraction of what the GPU can do in 16 bits. In bfloat16 nothing overflows here.
Line: queries_and_keys_widened_for_attention.py:Layer.forward
Remedy: the attention in bfloat16, as all else.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Layer(nn.Module):
    def __init__(self, width, heads, upcast):
        super().__init__()
        self.heads, self.upcast = heads, upcast
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        count, places, width = x.shape
        q, k, v = self.mixed(self.norms[0](x)).view(count, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.upcast:
            q, k, v = q.float(), k.float(), v.float()
        mixed = F.scaled_dot_product_attention(q, k, v).to(x.dtype)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, places, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


@torch.no_grad()
def main():
    loop = blind.Loop("queries_and_keys_widened_for_attention", "precision", steps=120, warm_up=10)
    device = loop.device()
    if loop.variant == "healthy":
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    pictures, places, width, heads = loop.size(2, 1), loop.size(4096, 16), loop.size(2048, 16), loop.size(16, 2)
    with torch.device(device):
        layers = nn.Sequential(*(Layer(width, heads, loop.planted) for _ in range(loop.size(4, 1))))
        layers.to(torch.bfloat16)
        latent = torch.randn(pictures, places, width).to(torch.bfloat16)
        start = latent.clone()

    def step(i):
        """A step of the sampler; a new picture is begun every twenty."""
        if i % 20 == 0:
            latent.copy_(start)
        latent.lerp_(layers(latent), 0.05)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
