# SPDX-License-Identifier: Apache-2.0
"""Forward and backward of a mixture-of-experts block in PyTorch, for comparison with `saturate bench step`.

usage: pytorch_experts.py [--rows N] [--width C] [--ffn F] [--experts E] [--top K] [--layers L] [--length N] [--vocab V]
                          [--mode eager|compile] [--products grouped|loop] [--repeats N] [--skew S]

A decoder-only model as GPT-2 (pre-norm, tanh GELU, learned positions, no dropout) whose feed-forward blocks are experts:
router in fp32, softmax over the chosen logits, rows sorted by expert, torch's grouped products (or a loop over experts),
index_add back, balance loss; AdamW and clipping as pytorch_step.py. bf16 autocast with fp32 weights. Under torchrun the ranks share out
the experts, rows travel by all-to-all with counts that the host reads, and DistributedDataParallel sums the other gradients; for comparison
with `--parallel dp=N,ep=N`. --skew: tokens prefer experts by Zipf's law with this exponent, by the means of saturate bench step --skew.
Prints one JSON line: median step time, tokens per second, the largest share of one expert and of one rank in the first layer.
"""
import argparse
import json
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

a = argparse.ArgumentParser()
a.add_argument("--rows", type=int, default=32768)
a.add_argument("--width", type=int, default=768)
a.add_argument("--ffn", type=int, default=3072)
a.add_argument("--experts", type=int, default=8)
a.add_argument("--top", type=int, default=2)
a.add_argument("--layers", type=int, default=12)
a.add_argument("--heads", type=int, default=12)
a.add_argument("--length", type=int, default=1024)
a.add_argument("--vocab", type=int, default=50304)
a.add_argument("--mode", default="compile")
a.add_argument("--products", default="grouped")
a.add_argument("--repeats", type=int, default=10)
a.add_argument("--skew", type=float, default=0)
a = a.parse_args()
RANKS, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
if RANKS > 1:
    dist.init_process_group("nccl")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
C, E, K = a.width, a.experts, a.top
OWN = E // RANKS
shares = {}


class Exchange(torch.autograd.Function):
    """Rows to the ranks of their experts; their gradients back."""

    @staticmethod
    def forward(ctx, x, to, came):
        ctx.counts = to, came
        y = x.new_empty(sum(came), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), came, to)
        return y

    @staticmethod
    def backward(ctx, g):
        to, came = ctx.counts
        x = g.new_empty(sum(to), g.shape[1])
        dist.all_to_all_single(x, g.contiguous(), to, came)
        return x, None, None


@torch.compiler.disable
def to_experts(rows, counts):
    """Rows of this rank's experts sorted by them, where each expert's end, and the way back."""
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    to, came = torch.stack((counts.view(RANKS, OWN).sum(1), theirs.view(RANKS, OWN).sum(1))).tolist()
    got = Exchange.apply(rows, to, came)
    order = torch.arange(OWN, device=rows.device).repeat(RANKS).repeat_interleave(theirs).argsort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=rows.device)
    return got[order], theirs.view(RANKS, OWN).sum(0).cumsum(0).int(), lambda y: Exchange.apply(y[back], came, to)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(C, E, bias=False)
        self.inner = nn.Parameter(torch.randn(OWN, a.ffn, C) * 0.02)
        self.outer = nn.Parameter(torch.randn(OWN, C, a.ffn) * 0.02)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            logits = F.linear(x.float(), self.router.weight)
        top, chosen = logits.topk(K, -1)
        gates = top.softmax(-1)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=E)
        ends = counts.cumsum(0).int()
        token = order // K
        if "counts" in shares:
            shares["counts"].append(counts)
        rows = x[token].bfloat16()
        if RANKS > 1:
            rows, ends, home = to_experts(rows, counts)
        inner, outer = self.inner.bfloat16(), self.outer.bfloat16()
        if a.products == "grouped":
            y = PRODUCTS(rows, inner.transpose(1, 2), outer.transpose(1, 2), ends)
        else:
            parts = rows.split(counts.tolist())
            y = torch.cat([F.linear(F.gelu(F.linear(r, inner[e]), approximate="tanh"), outer[e]) for e, r in enumerate(parts)])
        if RANKS > 1:
            y = torch.compiler.disable(home)(y)
        y = y * gates.flatten()[order, None].to(y.dtype)
        out = torch.zeros_like(x, dtype=y.dtype).index_add(0, token, y)
        balance = E * (counts / flat.numel() * logits.softmax(-1).mean(0)).sum()
        return out, 0.01 * balance


GROUPED = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def activate(h):
    return F.gelu(h, approximate="tanh")


ACTIVATE = torch.compile(activate, dynamic=True) if a.mode == "compile" and RANKS > 1 else activate


def products(rows, inner, outer, ends):
    return GROUPED(ACTIVATE(GROUPED(rows, inner, offs=ends)), outer, offs=ends)


# With rows from other ranks their number is known at run time alone, and compiling such grouped products ends in
# "Invalid strides/sizes" (2.11): they run eager, the activation between them compiled.
PRODUCTS = torch.compiler.disable(products) if RANKS > 1 else products


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out, self.experts = nn.Linear(C, 3 * C), nn.Linear(C, C), Experts()

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, a.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        y, loss = self.experts(self.norm2(x).view(-1, C))
        return x + y.view(B, T, C), loss


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.positions = nn.Embedding(a.vocab, C), nn.Embedding(a.length, C)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(a.layers)), nn.LayerNorm(C)

    def forward(self, ids, labels):
        x, extra = self.table(ids) + self.positions.weight, 0
        for layer in self.layers:
            x, loss = layer(x)
            extra = extra + loss
        logits = F.linear(self.norm(x), self.table.weight).flatten(0, 1).float()
        return F.cross_entropy(logits, labels.flatten()) + extra


model = Model().cuda()
if a.skew:
    signs = torch.randint(0, 2, (C,), device="cuda") * 2.0 - 1
    spread = 0.02 * math.sqrt(C * 1.25) * math.sqrt(6) / math.pi
    with torch.no_grad():
        for layer in model.layers:
            layer.norm2.bias.copy_(0.5 * signs)
            layer.experts.router.weight.normal_(0, 0.02)
            for e in range(E):
                layer.experts.router.weight[e] -= a.skew * math.log(e + 1) * spread / (0.5 * C) * signs
mine = [n for n, _ in model.named_parameters() if ".inner" in n or ".outer" in n]
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.1, fused=True)
ids, labels = (torch.randint(0, a.vocab - 47, (a.rows // a.length, a.length), device="cuda") for _ in range(2))
run = torch.compile(model) if a.mode == "compile" else model
if RANKS > 1:
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(run, mine + ["_orig_mod." + n for n in mine])
    run = nn.parallel.DistributedDataParallel(run, device_ids=[torch.cuda.current_device()])


def step():
    with torch.autocast("cuda", torch.bfloat16):
        loss = run(ids, labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


for _ in range(5):
    step()
times = []
for _ in range(a.repeats):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begin)
median = sorted(times)[len(times) // 2]
shares["counts"] = []
with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
    model(ids, labels)
first = shares["counts"][0].float()
if RANKS > 1:
    dist.all_reduce(first)
first /= first.sum()
if RANK == 0:
    print(json.dumps({"what": "pytorch_experts", "mode": a.mode, "products": a.products, "rows": a.rows, "width": C, "ffn": a.ffn,
                  "experts": E, "top": K, "layers": a.layers, "step_ms": round(median * 1e3, 2),
                  "skew": a.skew, "ranks": RANKS, "largest_share": round(first.max().item(), 3),
                  "rank_share": round(first.view(RANKS, OWN).sum(1).max().item(), 3), "tokens_per_s": round(RANKS * a.rows / median)}), flush=True)
if RANKS > 1:
    dist.destroy_process_group()
