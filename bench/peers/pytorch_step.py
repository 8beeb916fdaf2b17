# SPDX-License-Identifier: Apache-2.0
"""Training steps of the same models in PyTorch, for comparison with `saturate bench step`.

usage: pytorch_step.py [--device cpu|cuda] [--preset tiny|base|big|gpt2-124m|gpt2-355m|gpt2-1558m] [--batch TOKENS] [--length N]
                       [--vocab N] [--mode eager|compile|graphs] [--repeats N]
                       [--precision fp32|bf16|fp16|fp8] [--exact] [--recipe tensorwise|rowwise|rowwise_with_gw_hp] [--convert all|auto]
                       [--micro-batches N] [--checkpoint] [--memory GIB]

--precision is autocast's: bf16 on a GPU and fp32 (none) on the CPU unless given. fp32 products of a GPU may round their operands to
TF32 unless --exact forbids it. fp8 is bf16 in which torchao's Float8Linear takes the
place of linear layers: by --convert all those whose sides are multiples of 16, or auto, those that torchao expects to gain. The output
layer shares the embedding's table and stays in bf16, as in `saturate bench step --precision fp8`. On the CPU torchao emulates its
products, for a look at losses; times say nothing there.
Full batches of sentences of equal length, so PyTorch computes no padding either. Under torchrun it
becomes DistributedDataParallel. --batch is cut into micro-batches; --checkpoint computes layers again in the
backward pass; --memory bounds what PyTorch's allocator may take, as `train.memory` does. Prints one JSON line: median step time, CPU time of a step (all threads) and target
tokens per second, and where the driver counts energy (one GPU) joules of 1,000 target tokens.
"""
import argparse
import importlib.metadata
import json
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

a = argparse.ArgumentParser()
a.add_argument("--device", default="cuda")
a.add_argument("--preset", default="base")
a.add_argument("--batch", type=int, default=25088)
a.add_argument("--length", type=int, default=32)
a.add_argument("--vocab", type=int, default=32000)
a.add_argument("--mode", default="graphs")
a.add_argument("--repeats", type=int, default=20)
a.add_argument("--precision", choices=("fp32", "bf16", "fp16", "fp8"))
a.add_argument("--exact", action="store_true")
a.add_argument("--recipe", choices=("tensorwise", "rowwise", "rowwise_with_gw_hp"), default="tensorwise")
a.add_argument("--convert", choices=("all", "auto"), default="all")
a.add_argument("--micro-batches", type=int, default=1)
a.add_argument("--checkpoint", action="store_true")
a.add_argument("--memory", type=float, default=0)
a = a.parse_args()
a.precision = a.precision or ("bf16" if a.device == "cuda" else "fp32")
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
SIZES = {"tiny": (256, 4, 4, 1024), "base": (512, 8, 6, 2048), "big": (1024, 16, 6, 4096), "gpt2-124m": (768, 12, 12, 3072),
         "gpt2-355m": (1024, 16, 24, 4096), "gpt2-1558m": (1600, 25, 48, 6400)}
C, H, L, FFN = SIZES[a.preset]
LM = a.preset.startswith("gpt2")
torch.manual_seed(RANK)
torch.set_num_threads(len(os.sched_getaffinity(0)))
if a.device == "cuda":
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if a.memory:
        torch.cuda.set_per_process_memory_fraction(a.memory * 2**30 / torch.cuda.get_device_properties().total_memory)


def run_layer(layer, *x):
    return checkpoint(layer, *x, use_reentrant=False) if a.checkpoint else layer(*x)


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.q, self.kv, self.o = nn.Linear(C, C), nn.Linear(C, 2 * C), nn.Linear(C, C)

    def forward(self, x, memory):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, H, -1).transpose(1, 2)
        k, v = self.kv(memory).view(B, memory.shape[1], 2, H, -1).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(C // H)
            if self.causal:
                scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1), -math.inf)
            y = scores.softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, causal, cross):
        super().__init__()
        self.self_attention, self.norm1 = Attention(causal), nn.LayerNorm(C)
        self.cross, self.norm2 = (Attention(False), nn.LayerNorm(C)) if cross else (None, None)
        self.norm3, self.inner, self.outer = nn.LayerNorm(C), nn.Linear(C, FFN), nn.Linear(FFN, C)

    def forward(self, x, memory=None):
        y = self.norm1(x)
        x = x + self.self_attention(y, y)
        if self.cross is not None:
            x = x + self.cross(self.norm2(x), memory)
        h = self.inner(self.norm3(x))
        return x + self.outer(F.gelu(h, approximate="tanh") if LM else F.relu(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(a.vocab, C), nn.LayerNorm(C)
        self.positions = nn.Embedding(a.length, C) if LM else None
        self.encoder = nn.ModuleList() if LM else nn.ModuleList(Layer(False, False) for _ in range(L))
        self.encoder_norm = None if LM else nn.LayerNorm(C)
        self.decoder = nn.ModuleList(Layer(True, not LM) for _ in range(L))

    def forward(self, source, target, labels):
        memory = None
        if not LM:
            x = self.table(source) * math.sqrt(C)
            for layer in self.encoder:
                x = run_layer(layer, x)
            memory = self.encoder_norm(x)
        x = self.table(target) + self.positions.weight if LM else self.table(target) * math.sqrt(C)
        for layer in self.decoder:
            x = run_layer(layer, x, memory)
        logits = F.linear(self.norm(x), self.table.weight).flatten(0, 1).float()
        return F.cross_entropy(logits, labels.flatten(), label_smoothing=0.0 if LM else 0.1)


def convert_to_fp8(model):
    """Float8Linear for linear layers, in place; how many of how many."""
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear
    from torchao.float8.float8_linear_utils import _auto_filter_for_recipe

    config = Float8LinearConfig.from_recipe_name(a.recipe)
    if a.device == "cpu":
        if a.recipe == "rowwise_with_gw_hp":
            raise SystemExit("pytorch_step.py: --recipe rowwise_with_gw_hp needs a GPU: torchao follows autocast there alone")
        config = replace(config, emulate=True)
    chosen = lambda m, name: m.in_features % 16 == 0 and m.out_features % 16 == 0
    if a.convert == "auto":  # torchao has no rule for the third recipe: its products are rowwise too
        chosen = _auto_filter_for_recipe("tensorwise" if a.recipe == "tensorwise" else "rowwise", [])
    linear = sum(isinstance(m, nn.Linear) for m in model.modules())
    convert_to_float8_training(model, config=config, module_filter_fn=chosen)
    return sum(isinstance(m, Float8Linear) for m in model.modules()), linear


torch.set_float32_matmul_precision("highest" if a.exact else "high")
if RANKS > 1:
    torch.distributed.init_process_group("nccl")
model = Model().to(a.device)
fp8_layers = convert_to_fp8(model) if a.precision == "fp8" else None
if fp8_layers and not fp8_layers[0]:
    raise SystemExit(f"pytorch_step.py: --convert {a.convert} leaves all {fp8_layers[1]} linear layers of {a.preset} in bf16 with {a.recipe}")
wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if RANKS > 1 else model
fused = {"fused": True} if a.device == "cuda" else {"foreach": True}
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.1, **fused)
B = a.batch // a.length // a.micro_batches
scaler = torch.amp.GradScaler(a.device) if a.precision == "fp16" else None
batch = [torch.randint(0, a.vocab, (B, a.length), device=a.device) for _ in range(3)]
run = wrapped if a.mode == "eager" else torch.compile(wrapped, mode="reduce-overhead" if a.mode == "graphs" else None)


def step():
    for _ in range(a.micro_batches):
        if a.precision != "fp32":
            with torch.autocast(a.device, torch.float16 if a.precision == "fp16" else torch.bfloat16):
                loss = run(*batch) / a.micro_batches
        else:
            loss = run(*batch) / a.micro_batches
        (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def wait():
    if a.device == "cuda":
        torch.cuda.synchronize()


for _ in range(2 if a.device == "cpu" else 8):
    step()
times, cpu_times = [], []
for _ in range(a.repeats):
    wait()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    step()
    wait()
    times.append(time.perf_counter() - begin)
    cpu_times.append(time.process_time() - cpu_begin)


def step_joules(step_s):
    """Joules of a step while steps run back to back, by the driver's counter between its first change and its last."""
    if a.device != "cuda" or RANKS > 1:
        return None
    import ctypes
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    uuid, handle, count = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid), ctypes.c_void_p(), ctypes.c_ulonglong()
    uuid = uuid if uuid.startswith("GPU-") else "GPU-" + uuid
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None
    changes, begin = [], time.perf_counter()
    before = None
    while time.perf_counter() - begin < 1.2:
        step()
        torch.cuda.current_stream().synchronize()
        if nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(count)):
            return None
        if before is not None and count.value != before:
            changes.append((time.perf_counter(), count.value * 1e-3))
        before = count.value
    if len(changes) < 2:
        return None
    (t0, e0), (t1, e1) = changes[0], changes[-1]
    return (e1 - e0) / (t1 - t0) * step_s


median, cpu_median = sorted(times)[len(times) // 2], sorted(cpu_times)[len(times) // 2]
if RANK == 0:
    joules = step_joules(median)
    print(json.dumps({"what": "pytorch_step", "preset": a.preset, "mode": a.mode, "device": a.device, "ranks": RANKS,
                      "target_tokens": B * a.length * a.micro_batches * RANKS, "step_ms": round(median * 1e3, 3),
                      "cpu_ms": round(cpu_median * 1e3, 3),
                      "tokens_per_s": round(B * a.length * a.micro_batches * RANKS / median), "torch": torch.__version__,
                      **({"precision": "fp8", "recipe": a.recipe, "convert": a.convert, "fp8_layers": fp8_layers[0], "linear_layers": fp8_layers[1],
                          "torchao": importlib.metadata.version("torchao")} if fp8_layers else {}),
                      **({"joules_per_1000_tokens": round(joules / (B * a.length * a.micro_batches) * 1e3, 3)} if joules else {}),
                      **({"micro_batches": a.micro_batches, "checkpoint": a.checkpoint, "precision": a.precision, "memory_gib": a.memory,
                          "peak_bytes": torch.cuda.max_memory_reserved()} if a.memory else {})}), flush=True)
