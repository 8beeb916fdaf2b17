# SPDX-License-Identifier: Apache-2.0
"""https://github.com/lyuwenyu/RT-DETR/issues/678 (the same surprise in pytorch/pytorch#100347)

The detector uses the library's own attention module, which is known to choose a fused kernel, and still its layers are
slow and take much memory. It took a while to find out why the expected speed is not there.

Cause: the module returns the attention weights unless told otherwise. To have something to return, it writes the
matrix of all pairs of tokens, takes its softmax, and averages it over the heads; the caller drops all that at once.
Line: attention_weights_returned_and_dropped.py:forward (its call of self.attention).
Remedy: need_weights=False, with which the module calls the fused attention.
Trap: the attention is the library's, not written by hand, and no mask stands in the way of its fused kernels.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Layer(nn.Module):
    """One layer of an encoder over the cells of several feature maps, each with its place added to queries and keys."""

    def __init__(self, width, heads, asks):
        super().__init__()
        self.asks = asks
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, places):
        marked = x + places
        mixed, _ = self.attention(marked, marked, x, need_weights=self.asks)
        x = self.norms[0](x + mixed)
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


def main():
    loop = blind.Loop("attention_weights_returned_and_dropped", "memory", steps=160)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, cells, width = loop.size(8, 2), loop.size(2048, 12), loop.size(512, 16)
    with torch.device(device):
        layers = nn.ModuleList(Layer(width, loop.size(8, 2), loop.planted) for _ in range(loop.size(6, 1)))
        boxes = nn.Linear(width, 4)
        places = torch.randn(cells, width)
        images = [torch.randn(rows, cells, width) for _ in range(4)]
        wanted = torch.rand(rows, cells, 4)
    parameters = [*layers.parameters(), *boxes.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=device.type == "cuda")

    def step(i):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            x = images[i % len(images)]
            for layer in layers:
                x = layer(x, places)
            found = boxes(x)
        loss = F.l1_loss(found.float().sigmoid(), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
