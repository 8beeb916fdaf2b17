# SPDX-License-Identifier: Apache-2.0
"""Forward and backward of a mixture-of-experts block in PyTorch, for comparison with `saturate bench step`.

usage: pytorch_experts.py [--rows N] [--width C] [--ffn F] [--experts E] [--top K] [--layers L] [--length N] [--vocab V]
                          [--mode eager|compile] [--products grouped|loop] [--repeats N]

A decoder-only model as GPT-2 (pre-norm, tanh GELU, learned positions, no dropout) whose feed-forward blocks are experts:
router in fp32, softmax over the chosen logits, rows sorted by expert, torch's grouped products (or a loop over experts),
index_add back, balance loss; AdamW and clipping as pytorch_step.py. bf16 autocast with fp32 weights, one GPU.
Prints one JSON line: median step time and tokens per second.
"""
import argparse
import json
import time

import torch
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
a = a.parse_args()
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
C, E, K = a.width, a.experts, a.top


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(C, E, bias=False)
        self.inner = nn.Parameter(torch.randn(E, a.ffn, C) * 0.02)
        self.outer = nn.Parameter(torch.randn(E, C, a.ffn) * 0.02)

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
        rows = x[token].bfloat16()
        inner, outer = self.inner.bfloat16(), self.outer.bfloat16()
        if a.products == "grouped":
            h = F.gelu(GROUPED(rows, inner.transpose(1, 2), offs=ends), approximate="tanh")
            y = GROUPED(h, outer.transpose(1, 2), offs=ends)
        else:
            parts = rows.split(counts.tolist())
            y = torch.cat([F.linear(F.gelu(F.linear(r, inner[e]), approximate="tanh"), outer[e]) for e, r in enumerate(parts)])
        y = y * gates.flatten()[order, None].to(y.dtype)
        out = torch.zeros_like(x, dtype=y.dtype).index_add(0, token, y)
        balance = E * (counts / flat.numel() * logits.softmax(-1).mean(0)).sum()
        return out, 0.01 * balance


GROUPED = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


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
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.1, fused=True)
ids, labels = (torch.randint(0, a.vocab - 47, (a.rows // a.length, a.length), device="cuda") for _ in range(2))
run = torch.compile(model) if a.mode == "compile" else model


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
print(json.dumps({"what": "pytorch_experts", "mode": a.mode, "products": a.products, "rows": a.rows, "width": C, "ffn": a.ffn,
                  "experts": E, "top": K, "layers": a.layers, "step_ms": round(median * 1e3, 2),
                  "tokens_per_s": round(a.rows / median)}))
