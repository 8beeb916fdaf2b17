# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/141616 (also google-research/timesfm#457, pytorch/pytorch#91794)

The model goes through torch.compile, there is no error and no warning, and a step takes exactly as long as without it.
Other modes of the compiler change nothing. Compiling does not seem to help this model.

Cause: training calls another method than forward; the compiled module passes that on to the original, which runs
operation by operation: norms, gates and scales each read and write whole activations in device memory.
Line: loss_method_passes_the_compiler_by.py:forward (of Block; its element-wise lines)
Remedy: the method that training calls is what is compiled.
Trap: torch.compile is in the code, so nobody looks for work that is not fused.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Block(nn.Module):
    """A product between a scaled norm and a gate, with what a condition asks for."""

    def __init__(self, width):
        super().__init__()
        self.product = nn.Linear(width, width, bias=False)
        self.gain, self.shift, self.gate = (nn.Parameter(torch.randn(width) * 0.1) for _ in range(3))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + 1e-6)
        y = y * (1 + self.gain) + self.shift
        y = self.product(y.to(x.dtype))
        y = y * torch.sigmoid(1.702 * y)
        return x + y * torch.tanh(self.gate)


class Denoiser(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def training_loss(self, clean, noise, level):
        """How well the noise is found that was mixed into clean samples."""
        noisy = clean * torch.cos(level) + noise * torch.sin(level)
        return F.mse_loss(self(noisy).float(), noise.float())


def main():
    loop = blind.Loop("loss_method_passes_the_compiler_by", "memory")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, width = loop.size(32768, 8), loop.size(2048, 16)
    with torch.device(device):
        model = Denoiser(width, loop.size(4, 1)).to(torch.bfloat16)
        clean, noise = torch.randn(2, rows, width, dtype=torch.bfloat16)
        levels = torch.rand(8, rows, 1, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    backend = {} if device.type == "cuda" else {"backend": "eager"}  # a CPU need not have a compiler
    if loop.planted:
        loss_of = torch.compile(model, **backend).training_loss
    else:
        loss_of = torch.compile(model.training_loss, **backend)

    def step(i):
        loss = loss_of(clean, noise, levels[i % len(levels)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
