# SPDX-License-Identifier: Apache-2.0
"""https://github.com/roboflow/rf-detr/pull/1409 (the remedy, as detectron2 has it, in open-mmlab/mmengine#909)

Fine-tuning a small detector, the optimizer's step takes longer than one would believe, with the fused implementation
switched on or off; for the smallest model it is nearly 60 ms.

Cause: each weight is a parameter group of its own, as its learning rate depends on the depth of its layer. The fused
optimizer updates the weights of one group at once, so there is a round in Python and a launch for every weight.
Line: a_group_for_every_parameter.py:step (its call of optimizer.step).
Remedy: weights with the same settings share a group; there are few different settings.
Trap: the optimizer is the fused one already.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, cells, width = x.shape
        q, k, v = self.mixed(self.norms[0](x)).view(rows, cells, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, cells, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def settings_of(blocks, head, rate):
    """Each weight with its settings: the rate shrinks towards the input; vectors are not decayed."""
    for depth, block in enumerate(blocks):
        for weight in block.parameters():
            yield {"params": [weight], "lr": rate * 0.8 ** ((len(blocks) - depth) // 4),
                   "weight_decay": 1e-4 if weight.ndim > 1 else 0.0}
    for weight in head.parameters():
        yield {"params": [weight], "lr": rate, "weight_decay": 1e-4 if weight.ndim > 1 else 0.0}


def merged(groups):
    """The same settings, with all weights that share them in one group."""
    found = {}
    for group in groups:
        key = group["lr"], group["weight_decay"]
        found.setdefault(key, dict(group, params=[]))["params"] += group["params"]
    return list(found.values())


def main():
    loop = blind.Loop("a_group_for_every_parameter", "launch", steps=150)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    rows, cells, width = loop.size(24, 2), loop.size(300, 6), loop.size(256, 16)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        blocks = nn.Sequential(*[Block(width, loop.size(8, 2)) for _ in range(loop.size(40, 4))]).to(dtype)
        head = nn.Linear(width, 4).to(dtype)
        images = [torch.randn(rows, cells, width).to(dtype) for _ in range(4)]
        wanted = torch.rand(rows, cells, 4)
    groups = list(settings_of(blocks, head, 1e-5))
    optimizer = torch.optim.AdamW(groups if loop.planted else merged(groups), fused=True)

    def step(i):
        found = head(blocks(images[i % len(images)]))
        loss = F.l1_loss(found.float().sigmoid(), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
