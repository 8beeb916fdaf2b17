# SPDX-License-Identifier: Apache-2.0
"""Llama-like layers in PyTorch, cut by DTensor plans (tensor and sequence parallel), compiled, for comparison with
`saturate bench step --parallel tp=N`.

usage: torchrun --standalone --nproc-per-node N pytorch_tensor_parallel.py [--width 4096] [--layers 4] [--heads 32]
                [--kv-heads 8] [--ffn 14336] [--rows 8192] [--length 2048] [--vocab 32000] [--repeats 10]

Forward, loss (vocabulary parallel) and backward in bf16, without an optimizer, so it does less than our step. Prints one
JSON line: median milliseconds and TFLOP/s of a GPU, counted as Saturate counts them.
"""
import argparse
import json
import os
import statistics

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)

p = argparse.ArgumentParser()
for name, value in dict(width=4096, layers=4, heads=32, kv_heads=8, ffn=14336, rows=8192, length=2048, vocab=32000, repeats=10).items():
    p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
a = p.parse_args()
RANKS = int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
HEAD = a.width // a.heads


def rotate(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(a.width, a.width, bias=False)
        self.k = nn.Linear(a.width, a.kv_heads * HEAD, bias=False)
        self.v = nn.Linear(a.width, a.kv_heads * HEAD, bias=False)
        self.o = nn.Linear(a.width, a.width, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (m(x).view(b, t, -1, HEAD).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(a.width, a.ffn, bias=False)
        self.up = nn.Linear(a.width, a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(a.width), Attention()
        self.norm2, self.ffn = nn.RMSNorm(a.width), FeedForward()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.ffn(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.width)
        self.layers = nn.ModuleList(Layer() for _ in range(a.layers))
        self.norm, self.output = nn.RMSNorm(a.width), nn.Linear(a.width, a.vocab, bias=False)

    def forward(self, ids, cos, sin):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))


def main():
    mesh = init_device_mesh("cuda", (RANKS,))
    torch.manual_seed(0)
    model = Model().cuda().bfloat16()
    column, row = ColwiseParallel, lambda: RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh, {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.layers:
        parallelize_module(layer, mesh, {
            "norm1": SequenceParallel(), "norm2": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)),
            "ffn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention.q": column(), "attention.k": column(), "attention.v": column(), "attention.o": row(),
            "ffn.gate": column(), "ffn.up": column(), "ffn.down": row()})
    run = torch.compile(model)
    ids = torch.randint(a.vocab, (a.rows // a.length, a.length), device="cuda")
    angle = torch.outer(torch.arange(a.length, device="cuda").float(), 10000 ** (-torch.arange(0, HEAD, 2, device="cuda").float() / HEAD))
    cos, sin = (torch.cat((f(angle), f(angle)), -1).bfloat16() for f in (torch.cos, torch.sin))

    def step():
        model.zero_grad(set_to_none=True)
        with loss_parallel():
            F.cross_entropy(run(ids, cos, sin).flatten(0, 1), ids.flatten()).backward()

    for _ in range(4):
        step()
    times = []
    for _ in range(a.repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    ms = statistics.median(times)
    kv = a.kv_heads * HEAD
    layer = a.width * (2 * a.width + 2 * kv) + 3 * a.width * a.ffn + a.width * a.length  # causal: half of 2 products
    flops = 6 * a.rows * (a.layers * layer + a.vocab * a.width)
    if dist.get_rank() == 0:
        print(json.dumps({"what": "step", "peer": "DTensor " + torch.__version__, "ranks": RANKS, "rows": a.rows, "step_ms": round(ms, 3),
                          "model_tflops": round(flops / ms / 1e9 / RANKS, 1)}), flush=True)
    dist.destroy_process_group()


main()
