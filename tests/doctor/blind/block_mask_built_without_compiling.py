# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/151043 (also meta-pytorch/attention-gym#149, lightseekorg/TorchSpec#187)

Several documents are packed into one long sequence, and a mask keeps them apart; attention itself is compiled and
fast. But the mask has to be built anew for every batch, and building it takes longer than the attention it saves.

Cause: the function that builds the mask is called as it is. Operation by operation it forms the whole square of the
sequence length in memory, several times over, only to sum it up to one number for each block of 128 by 128.
Line: block_mask_built_without_compiling.py:mask_of (its call of create_block_mask).
Remedy: that function is compiled too, so that the square is summed up where it arises and never written.
Trap: the attention is compiled, and sparse.
"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import blind
import training


class Block(nn.Module):
    def __init__(self, width, heads, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        q, k, v = self.mixed(self.norms[0](x)).view(1, x.shape[0], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.attend(q.contiguous(), k.contiguous(), v.contiguous(), block_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def packed(length, longest, generator):
    """Which document each token belongs to, when documents of random lengths fill the sequence."""
    lengths = torch.randint(longest // 4, longest + 1, (8 * length // longest,), generator=generator)
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)[:length]


def main():
    loop = blind.Loop("block_mask_built_without_compiling", "memory", steps=200, warm_up=12)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    length, width, longest = loop.size(65536, 256), loop.size(1024, 32), loop.size(2048, 64)
    attend, build = flex_attention, create_block_mask
    if device.type == "cuda":
        attend = torch.compile(attend, dynamic=False)
        build = build if loop.planted else torch.compile(build, dynamic=False)
    with torch.device(device):
        blocks = nn.ModuleList(Block(width, loop.size(16, 2), attend) for _ in range(loop.size(2, 1)))
        blocks.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
        blocks.requires_grad_(device.type == "cuda")
        x = torch.randn(length, width).to(next(blocks.parameters()).dtype)
    generator = torch.Generator().manual_seed(1)
    batches = [packed(length, longest, generator).to(device) for _ in range(8)]
    document = batches[0].clone()
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-5, fused=device.type == "cuda")

    def same_document(row, head, q, k):
        return (document[q] == document[k]) & (q >= k)

    def mask_of(batch):
        document.copy_(batch)
        return build(same_document, None, None, length, length, device=device)

    def step(i):
        mask = mask_of(batches[i % len(batches)])
        y = x
        for block in blocks:
            y = block(y, mask)
        loss = F.mse_loss(y[:-1].float(), x[1:].float())
        if device.type != "cuda":
            return  # there, this attention has no backward pass
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
