# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/diffusers/issues/9417

Fine-tuning an image model with flow matching, a profile shows the noise schedule among the slowest parts of a step,
though it only tells how much noise each image gets. Its search for the time step seems to be what is slow.

Cause: the schedule lies on the GPU, and for each image of the batch the host asks where in it this image's time step
stands. Every answer is a small comparison that the host waits for, several hundred times before the model may start.
Line: noise_levels_looked_up_one_by_one.py:index_for_timestep (sigmas_of calls it for each image).
Remedy: the steps of the whole batch are found in one comparison on the GPU, and nobody waits.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Schedule:
    """The noise of each time step, from all noise to none, and how a time step finds its own."""

    def __init__(self, count, device):
        self.sigmas = torch.linspace(1.0, 1.0 / count, count, device=device)
        self.timesteps = self.sigmas * count

    def index_for_timestep(self, timestep):
        found = (self.timesteps == timestep).nonzero()
        return found[1 if len(found) > 1 else 0].item()

    def sigmas_of(self, timesteps):
        return self.sigmas[[self.index_for_timestep(timestep) for timestep in timesteps]]

    def sigmas_of_all(self, timesteps):
        found = (self.timesteps[None, :] == timesteps[:, None]).to(torch.uint8).argmax(dim=1)
        return self.sigmas[found]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, tokens, width = x.shape
        q, k, v = self.mixed(self.norms[0](x)).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Velocity(nn.Module):
    """A small transformer over the patches of a latent image, told how noisy it is."""

    def __init__(self, patch, width, layers, heads):
        super().__init__()
        self.enter, self.told, self.leave = nn.Linear(patch, width), nn.Linear(1, width), nn.Linear(width, patch)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])

    def forward(self, x, sigmas):
        return self.leave(self.blocks(self.enter(x) + self.told(sigmas[:, None])[:, None]))


def main():
    loop = blind.Loop("noise_levels_looked_up_one_by_one", "sync", steps=220)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, tokens, patch, count = loop.size(512, 3), loop.size(64, 4), loop.size(64, 8), loop.size(1000, 10)
    with torch.device(device):
        model = Velocity(patch, loop.size(1024, 16), loop.size(6, 1), loop.size(16, 2)).to(torch.bfloat16)
        images = [torch.randn(rows, tokens, patch) for _ in range(4)]
    schedule = Schedule(count, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    sigmas_of = schedule.sigmas_of if loop.planted else schedule.sigmas_of_all
    span = training.GpuSpan(loop, device)

    def step(i):
        clean = images[i % len(images)]
        noise = torch.randn_like(clean)
        timesteps = schedule.timesteps[torch.randint(count, (rows,), device=device)]
        span.begin()
        sigmas = sigmas_of(timesteps)
        span.end()
        level = sigmas[:, None, None]
        noisy = (1 - level) * clean + level * noise
        predicted = model(noisy.to(torch.bfloat16), sigmas.to(torch.bfloat16))
        loss = F.mse_loss(predicted.float(), noise - clean)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
