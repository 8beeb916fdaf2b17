# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in a pipeline of torch.distributed.pipelining, for comparison with `saturate bench step --parallel pp=N`.

    torchrun --standalone --nproc-per-node 2 bench/peers/pytorch_pipeline.py --micro-batches 8 [--schedule 1f1b]

bf16 autocast, fused AdamW with fp32 states, clipping by the norm of each stage's own gradients (the peer has no norm over stages), untied output.
Prints one line of JSON: median step, tokens/s.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SIZES = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16), "gpt2-xl": (1600, 48, 25)}
VOCAB = 50304


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Stage(nn.Module):
    def __init__(self, width, heads, blocks, length, first, last):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width) if first else None
        self.positions = nn.Embedding(length, width) if first else None
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width) if last else None
        self.head = nn.Linear(width, VOCAB, bias=False) if last else None

    def forward(self, x):
        with torch.autocast("cuda", torch.bfloat16):
            if self.tokens is not None:
                x = (self.tokens(x) + self.positions.weight[: x.shape[1]]).bfloat16()
            for block in self.blocks:
                x = block(x)
            return x if self.head is None else self.head(self.norm(x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=SIZES, default="gpt2")
    p.add_argument("--micro-batches", type=int, default=8)
    p.add_argument("--batch", type=int, default=16, help="sequences of a micro-batch")
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
    p.add_argument("--repeats", type=int, default=10)
    a = p.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(1)
    width, layers, heads = SIZES[a.model]
    # By cost, as ours: the output product is worth VOCAB / (12 width) layers.
    output = VOCAB / (12 * width)
    each = (layers + output) / ranks
    ends = [min(layers, round(each * (r + 1))) for r in range(ranks - 1)] + [layers]
    mine = ends[rank] - (ends[rank - 1] if rank else 0)
    stage_module = Stage(width, heads, mine, a.length, rank == 0, rank == ranks - 1).to(device)
    stage = PipelineStage(stage_module, rank, ranks, device)
    loss_of = lambda y, t: F.cross_entropy(y.float().flatten(0, 1), t.flatten())
    kind = Schedule1F1B if a.schedule == "1f1b" else ScheduleGPipe
    schedule = kind(stage, a.micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(stage_module.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(VOCAB, (a.batch * a.micro_batches, a.length + 1), device=device)

    def step():
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        elif rank == ranks - 1:
            schedule.step(target=tokens[:, 1:].contiguous(), losses=[])
        else:
            schedule.step()
        torch.nn.utils.clip_grad_norm_(stage_module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times = []
    for i in range(a.repeats + 3):
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        dist.barrier()
        if i >= 3:
            times.append(time.perf_counter() - begin)
    times.sort()
    median = times[len(times) // 2]
    if rank == 0:
        print(json.dumps({"what": "pytorch_pipeline", "model": a.model, "ranks": ranks, "schedule": a.schedule,
                          "micro_batches": a.micro_batches, "step_ms": round(median * 1e3, 3),
                          "tokens_per_s": round(a.batch * a.micro_batches * a.length / median)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
