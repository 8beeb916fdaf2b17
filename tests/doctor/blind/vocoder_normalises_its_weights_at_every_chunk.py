# SPDX-License-Identifier: Apache-2.0
"""https://github.com/vllm-project/vllm-omni/pull/7871 (also vllm-omni#6927, NVIDIA/waveglow#21, wenet-e2e/wetts#129)

Speech is streamed in short chunks, and the vocoder takes more time for a chunk than its convolutions should. In a
profile, each of them comes with the kernel of weight normalisation, although the weights do not change any more.

Cause: the convolutions were left as they were trained: at each call every one of them forms its weight from a direction
and a length. For a chunk that is short these additional kernels take as long to launch as the convolutions themselves.
Line: vocoder_normalises_its_weights_at_every_chunk.py:forward (of Residual; Vocoder.forward calls it).
Remedy: after loading, the weights are formed once, and the parametrisation is removed.
"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import blind
import training


def normed(module):
    return parametrizations.weight_norm(module)


class Residual(nn.Module):
    """Three dilated convolutions, and one after each, with a short cut around every pair."""

    def __init__(self, channels, size):
        super().__init__()
        half = (size - 1) // 2
        self.dilated = nn.ModuleList(normed(nn.Conv1d(channels, channels, size, dilation=d, padding=d * half))
                                     for d in (1, 3, 5))
        self.plain = nn.ModuleList(normed(nn.Conv1d(channels, channels, size, padding=half)) for _ in range(3))

    def forward(self, x):
        for dilated, plain in zip(self.dilated, self.plain):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Vocoder(nn.Module):
    """From frames of a spectrogram to samples of sound, in four steps of ever longer and thinner signals."""

    def __init__(self, bands, channels, rates=(8, 8, 2, 2)):
        super().__init__()
        self.enter = normed(nn.Conv1d(bands, channels, 7, padding=3))
        self.wider, self.blocks = nn.ModuleList(), nn.ModuleList()
        for i, rate in enumerate(rates):
            thin = channels // 2 ** (i + 1)
            self.wider.append(normed(nn.ConvTranspose1d(2 * thin, thin, 2 * rate, rate, padding=rate // 2)))
            self.blocks.append(nn.ModuleList(Residual(thin, size) for size in (3, 7, 11)))
        self.leave = normed(nn.Conv1d(thin, 1, 7, padding=3))

    def forward(self, x):
        x = self.enter(x)
        for wider, blocks in zip(self.wider, self.blocks):
            x = wider(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.leave(F.leaky_relu(x)))


def fold(model):
    for module in model.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


@torch.inference_mode()
def main():
    loop = blind.Loop("vocoder_normalises_its_weights_at_every_chunk", "launch", steps=2500, warm_up=50)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
        with torch.inference_mode(False), torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    with torch.inference_mode(False):
        model = Vocoder(loop.size(80, 8), loop.size(512, 16)).eval().requires_grad_(False)
        if not loop.planted:
            fold(model)
        model.to(device, torch.float16 if device.type == "cuda" else torch.float32)
    dtype = next(model.parameters()).dtype
    chunks = [torch.randn(1, loop.size(80, 8), loop.size(16, 4), device=device).to(dtype) for _ in range(8)]

    def step(i):
        return model(chunks[i % len(chunks)])

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
