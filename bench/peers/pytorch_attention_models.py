#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention as well-known models call it, by PyTorch: peers of saturate_attention_models_bench, one JSON line each.

    pytorch_attention_models.py                   every case
    pytorch_attention_models.py gemma2 t5         the cases whose names contain a word

Ways: flex (torch.nn.attention.flex_attention, compiled), and the backends of scaled_dot_product_attention that the case
allows: cudnn and flash without a mask of its own, efficient and cudnn with the additive bias. Medians of CUDA events
over launches on two sets of inputs, uniform in [-1, 1); backward alone is the time of both passes less forward's. The
gradient of T5's bias is part of its backward pass.
"""

import json
import statistics
import sys
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

# As in src/kernels/attention/bench/attention_models_bench.cpp.
CASES = {
    "gemma2_local": dict(batch=1, heads=8, kv_heads=4, length=8192, size=256, window=4095, cap=50.0),
    "gemma2_global": dict(batch=1, heads=8, kv_heads=4, length=8192, size=256, cap=50.0),
    "mistral": dict(batch=1, heads=32, kv_heads=8, length=8192, size=128, window=4095),
    "gpt_oss_local": dict(batch=2, heads=64, kv_heads=8, length=4096, size=64, window=127),
    "gpt_oss_global": dict(batch=2, heads=64, kv_heads=8, length=4096, size=64),
    "t5": dict(batch=32, heads=12, kv_heads=12, length=512, size=64, causal=False, bias=True),
    "alibi": dict(batch=4, heads=32, kv_heads=32, length=2048, size=128, alibi=True),
    "deepseek_v3": dict(batch=1, heads=32, kv_heads=32, length=4096, size=192, value=128),
    "phi2": dict(batch=4, heads=32, kv_heads=32, length=2048, size=80),
    "phi3": dict(batch=2, heads=32, kv_heads=32, length=4096, size=96, window=2046),
}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def flex_of(case, slopes, bias):
    """A function of q, k, v by the compiled flex_attention."""
    cap, window = case.get("cap"), case.get("window")
    causal = case.get("causal", True)

    def score_mod(score, b, h, i, j):
        if cap:
            score = cap * torch.tanh(score / cap)
        if slopes is not None:
            score = score - slopes[h] * (i - j)
        if bias is not None:
            score = score + bias[h, i, j]
        return score

    def mask_mod(b, h, i, j):
        seen = j <= i
        return seen & (i - j <= window) if window else seen

    mask = create_block_mask(mask_mod, None, None, case["length"], case["length"], device="cuda") if causal else None
    changed = cap or slopes is not None or bias is not None
    compiled = torch.compile(flex_attention, dynamic=False)
    gqa = case["heads"] != case["kv_heads"]
    return lambda q, k, v: compiled(q, k, v, score_mod=score_mod if changed else None, block_mask=mask, enable_gqa=gqa)


def ways_of(case, slopes, bias):
    yield "flex", flex_of(case, slopes, bias)
    if case.get("window") or case.get("cap") or slopes is not None:
        return
    for name, backend in BACKENDS.items():
        if bias is not None and name == "flash":
            continue

        def call(q, k, v, backend=backend):
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(
                    q, k, v, attn_mask=None if bias is None else bias[None], is_causal=bias is None,
                    enable_gqa=case["heads"] != case["kv_heads"])

        yield name, call


def median_ms(call, sets):
    for s in sets:
        call(*s)
    times = []
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for s in sets * 2:
            call(*s)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / (2 * len(sets)))
    return statistics.median(times)


def measure(name, case):
    torch.manual_seed(0)
    torch._dynamo.reset()  # a compiled function keeps few shapes and would then run unfused
    random = lambda *shape: (torch.rand(*shape, device="cuda") * 2 - 1).to(torch.bfloat16)
    batch, heads, kv_heads, length, size = (case[x] for x in ("batch", "heads", "kv_heads", "length", "size"))
    value = case.get("value", size)
    sets = []
    for _ in range(2):
        q, k, v = random(batch, heads, length, size), random(batch, kv_heads, length, size), random(batch, kv_heads, length, value)
        sets.append([t.requires_grad_() for t in (q, k, v)] + [random(batch, heads, length, value)])
    slopes = torch.rand(heads, device="cuda") if case.get("alibi") else None
    bias = random(heads, length, length).requires_grad_() if case.get("bias") else None
    for way, call in ways_of(case, slopes, bias):
        try:
            with torch.no_grad():
                forward = median_ms(lambda q, k, v, _: call(q, k, v), sets)
            inputs = lambda q, k, v: (q, k, v) if bias is None else (q, k, v, bias)
            both = median_ms(lambda q, k, v, d_o: torch.autograd.grad(call(q, k, v), inputs(q, k, v), d_o), sets)
        except Exception as error:  # a way that does not take the shape says so in many kinds of errors
            print(f"{name} {way}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        print(json.dumps({"what": "attention_model", "case": name, "implementation": f"pytorch_{way}", "type": "bf16",
                          "forward_ms": round(forward, 4), "backward_ms": round(both - forward, 4),
                          "torch": torch.__version__}), flush=True)


def main():
    words = sys.argv[1:]
    warnings.simplefilter("ignore")
    for name, case in CASES.items():
        if not words or any(word in name for word in words):
            measure(name, case)


if __name__ == "__main__":
    main()
