# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch/issues/61890 (also #113388).

The full-precision linear layers take about ten times as long as the same layers in half precision on a new card, and
nothing in the log says that anything is switched off.

Cause: products of fp32 matrices run outside the tensor cores, because TF32 is off unless the program allows it.
Line: fp32_head_without_tf32.py:forward, the head that is kept out of autocast.
Remedy: torch.set_float32_matmul_precision("high").
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


class Scorer(nn.Module):
    """A bf16 trunk and a head in fp32, as people keep it where the targets need the range."""

    def __init__(self, width, layers, head_dtype):
        super().__init__()
        self.trunk = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.head_dtype = head_dtype

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            for layer in self.trunk:
                x = x + F.gelu(layer(x))
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.head_dtype == torch.bfloat16):
            return self.head(x.to(self.head_dtype if self.head_dtype == torch.bfloat16 else torch.float32))


def main():
    loop = blind.Loop("fp32_head_without_tf32", "precision", steps=500)
    device = loop.device()
    torch.manual_seed(0)
    width, batch = loop.size(4096, 32), loop.size(2048, 8)
    if loop.variant == "fixed":
        torch.set_float32_matmul_precision("high")
    head_dtype = torch.bfloat16 if loop.variant == "healthy" else torch.float32
    model = Scorer(width, loop.size(24, 2), head_dtype).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4, batch, width, device=device)
    y = torch.randn(4, batch, width, device=device)

    def step(i):
        loss = F.mse_loss(model(x[i % 4]).float(), y[i % 4])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
