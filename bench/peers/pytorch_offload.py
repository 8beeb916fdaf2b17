# SPDX-License-Identifier: Apache-2.0
"""A Llama-like model whose optimizer's state lies in host memory, in PyTorch (FSDP2 with CPUOffloadPolicy, AdamW on the CPU), for comparison
with `saturate bench step --parallel offload=true`.

usage: pytorch_offload.py [--width 4096] [--layers 32] [--heads 32] [--kv-heads 8] [--ffn 14336] [--vocab 32000] [--length 2048]
                          [--rows 4096] [--micro-batches 16] [--repeats 3] [--resident] [--eager] [--checkpoint] [--context]
                          [--reshard]

bf16 with fp32 masters, moments and sums, clipping. Weights stay on the GPU, and gradients are added up there, from the first micro-batch of a
step to its last, so that state and gradients cross the bus once a step. --reshard: weights are given up after the forward pass and gathered again for
the gradients, as `--parallel zero=3` does; without it they stay, as with zero=2. --resident: all on the GPU. --checkpoint: layers compute again in the
backward pass. --context: the ranks share each sequence (PyTorch's context_parallel, keys and values gathered), and the weights as before; for
comparison with `--parallel cp=N`. Alone or under torchrun. Prints one JSON line: median step, tokens/s, peak memory.
"""
import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.utils.checkpoint import checkpoint

p = argparse.ArgumentParser()
for name, value in dict(width=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=32000, length=2048, rows=4096, micro_batches=16,
                        repeats=3).items():
    p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
for name in ("resident", "eager", "checkpoint", "context", "reshard"):
    p.add_argument("--" + name, action="store_true")
a = p.parse_args()
HEAD = a.width // a.heads
for key, value in dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511").items():
    os.environ.setdefault(key, value)
RANKS = int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // RANKS))


def rotate(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(a.width), nn.RMSNorm(a.width)
        self.q, self.o = nn.Linear(a.width, a.width, bias=False), nn.Linear(a.width, a.width, bias=False)
        self.k, self.v = (nn.Linear(a.width, a.kv_heads * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(a.width, a.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(a.ffn, a.width, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (m(h).view(b, t, -1, HEAD).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if a.context:  # its attention knows no groups of heads
            k, v = (x.repeat_interleave(a.heads // a.kv_heads, 1) for x in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not a.context)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.width)
        self.layers = nn.ModuleList(Layer() for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.width)

    def forward(self, ids, cos, sin):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if a.checkpoint else layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed.weight).flatten(0, 1)  # one table, as saturate's presets have it
        return F.cross_entropy(logits.float(), ids.flatten())


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    with torch.device("meta"):
        model = Model()
    policy = dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), reshard_after_forward=a.reshard)
    if not a.resident:
        policy["offload_policy"] = CPUOffloadPolicy()
    for layer in model.layers:
        if not a.eager:
            layer.compile()
        fully_shard(layer, **policy)
    fully_shard(model, **policy)
    device = "cuda" if a.resident else "cpu"
    model.to_empty(device=device)
    noise = torch.randn(1 << 20, device=device) * 0.02
    with torch.no_grad():
        for parameter in model.parameters():
            for piece in parameter.to_local().view(-1).split(noise.numel()):
                piece.copy_(noise[:piece.numel()])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, weight_decay=0.1, fused=True)
    ids = torch.randint(a.vocab, (max(1, a.rows // a.length), a.length), device="cuda")
    angle = torch.outer(torch.arange(a.length, device="cuda").float(), 10000 ** (-torch.arange(0, HEAD, 2, device="cuda").float() / HEAD))
    cos, sin = (torch.cat((f(angle), f(angle)), -1).bfloat16() for f in (torch.cos, torch.sin))

    mesh = init_device_mesh("cuda", (RANKS,)) if a.context else None

    def shared():  # cuts the buffers to this rank's rows, and puts them back
        return context_parallel(mesh, buffers=[ids, cos, sin], buffer_seq_dims=[1, 0, 0]) if a.context else contextlib.nullcontext()

    def step():
        for i in range(a.micro_batches):
            last = i + 1 == a.micro_batches
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            with shared():
                (model(ids, cos, sin) / a.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    times = []
    for i in range(2 + a.repeats):
        begin = time.perf_counter()
        step()
        if i >= 2:
            times.append(time.perf_counter() - begin)
    seconds, tokens = statistics.median(times), ids.numel() * a.micro_batches * (1 if a.context else RANKS)
    if dist.get_rank() == 0:
        print(json.dumps({"what": "pytorch_offload", "mode": "resident" if a.resident else "offload", "compiled": not a.eager,
                          "checkpoint": a.checkpoint, "reshard": a.reshard, "context": a.context, "ranks": RANKS, "parameters": sum(x.numel() for x in model.parameters()),
                          "target_tokens": tokens, "step_ms": round(seconds * 1e3, 3), "tokens_per_s": round(tokens / seconds),
                          "memory_bytes": torch.cuda.max_memory_reserved(), "torch": torch.__version__}), flush=True)
    dist.destroy_process_group()


main()
