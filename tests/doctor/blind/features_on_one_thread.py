# SPDX-License-Identifier: Apache-2.0
"""https://github.com/ShangtongZhang/DeepRL/issues/63

Whatever I set, the machine uses one core only, and the GPU waits for it. All cores take part when I comment out the
call of set_one_thread() at the top of the example.

Cause: the number of threads is set to one for the whole process, and the training process computes the features of
each batch by products on the processor.
Line: features_on_one_thread.py:features
Remedy: four threads, as many as pay: a product of this size takes a few milliseconds on them, and the other cores
are left to whatever else runs on the machine.
"""
import math
import os

import torch
from torch import nn

import blind
import training


def set_one_thread():
    torch.set_num_threads(1)


def set_four_threads():
    torch.set_num_threads(min(4, len(os.sched_getaffinity(0))))


def fourier_basis(window):
    """Cosines and sines of a real transform as the columns of one matrix: (window, window + 2)."""
    at = 2 * math.pi / window * torch.arange(window)[:, None] * torch.arange(window // 2 + 1)[None, :]
    return torch.cat([at.cos(), at.sin()], dim=1)


def features(wave, basis, bands, hop):
    """Logarithm of the power in each band, for each window of the wave."""
    spectrum = wave.unfold(0, basis.shape[0], hop) @ basis
    real, imaginary = spectrum.chunk(2, dim=1)
    return torch.log(1e-6 + (real.square() + imaginary.square()) @ bands)


def main():
    loop = blind.Loop("features_on_one_thread", "threads", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    if loop.planted:
        set_one_thread()
    else:
        set_four_threads()
    torch.manual_seed(0)
    window, hop, rows, width = loop.size(400, 16), loop.size(160, 8), loop.size(5120, 16), loop.size(4096, 16)
    basis = fourier_basis(window)
    bands = torch.rand(window // 2 + 1, 80)
    waves = torch.randn(4, window + hop * (rows - 1))
    with torch.device(device):
        body, _ = training.make_model(loop.size(16, 1), width, device)
        model = nn.Sequential(nn.Linear(80, width), body).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps = training.GpuGaps(loop, device)

    def step(i):
        x = features(waves[i % 4], basis, bands, hop)
        x = x.pin_memory() if device.type == "cuda" else x
        gaps.begin()
        training.train(model, optimizer, x.to(device, non_blocking=True).to(torch.bfloat16))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
