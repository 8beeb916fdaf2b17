# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/60691

Clipping the gradients costs hardly any time by itself, but with it in the loop the GPU is used less: what comes after
the clipping, the optimizer above all, starts late in every step.

Cause: the clipping is asked to raise an error where a norm is not finite; the host waits for that answer with an empty
queue behind it, then mixes the next batch and prepares the optimizer while the GPU has nothing to do.
Line: clipping_asks_for_finite_norms.py:clip
Remedy: no question to the GPU in the step (error_if_nonfinite=False); norms are looked at after every hundred steps.
"""
import numpy as np
import torch
from torch import nn

import blind
import training


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def clip(model, asks):
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=asks)


def main():
    loop = blind.Loop("clipping_asks_for_finite_norms", "sync", steps=220)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    width, rows, noisy = loop.size(1536, 32), loop.size(9216, 8), loop.size(1200, 2)
    with torch.device(device):
        model = nn.Sequential(*(Block(width) for _ in range(loop.size(16, 3)))).to(torch.bfloat16)
        spectra = torch.randn(rows, width).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    norms = []

    def mixed():
        """The spectra, some rows of them with new noise that the host draws: 1843200 numbers."""
        noise = torch.from_numpy(rng.standard_normal((noisy, width), dtype=np.float32))
        noise = noise.pin_memory() if device.type == "cuda" else noise
        noise = noise.to(device, non_blocking=True).to(spectra.dtype)
        return spectra + nn.functional.pad(noise, (0, 0, 0, rows - noisy))

    def work(asks):
        loss = (model(mixed()) - spectra).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norms.append(clip(model, asks))
        optimizer.step()

    span = training.GpuSpan(loop, device)
    blind.take_gpu()
    span.due = span.queued(lambda: work(False))

    def step(i):
        span.begin()
        work(loop.planted)
        span.end()
        if i % 100 == 99:
            assert torch.stack(norms).isfinite().all()
            norms.clear()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
