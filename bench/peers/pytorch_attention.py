#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention by PyTorch's ways and by Saturate, in one process: one JSON line each.

    pytorch_attention.py --shape 32 12 1024 64 --causal --dtype bf16
    pytorch_attention.py --shape 784 8 32 64 --shape 256 8 64 64 --dtype bf16 --only cudnn efficient saturate

Several shapes are measured one after the other. A shape is BATCH HEADS LENGTH HEAD_SIZE, causal counts half, backward counts 2.5 times forward. On a GPU: medians of
replays of a CUDA graph of 12 calls over three sets of inputs, larger together than L2 at training shapes, uniform in
[-1, 1). Ways: eager (the formula), math, flash, efficient, cudnn (backends of scaled_dot_product_attention), saturate
(the Python package, if it is installed), and of the packages flash_attn3, flash_attn2 and flashinfer (forward only)
those that are installed. A way that the shape or the machine does not offer prints why on stderr. `saturate bench
attention --ladder --peers FILE` puts these lines beside every kernel of its own.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PACKAGES = ("flash_attn3", "flash_attn2", "flashinfer")
WAYS = ("eager", *BACKENDS, *PACKAGES, "saturate")
FORWARD_ONLY = {"flashinfer"}
ROWS_FIRST = {*PACKAGES, "saturate"}  # (batch, length, heads, size)
SETS, CALLS = 3, 12


def eager(q, k, v, causal):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


def way_of(name, causal):
    """A function of q, k, v; (batch, length, heads, size) for ROWS_FIRST, (batch, heads, length, size) for the others."""
    if name == "eager":
        return lambda q, k, v: eager(q, k, v, causal)
    if name == "saturate":
        import saturate

        return lambda q, k, v: saturate.attention(q, k, v, causal=causal)

    if name in ("flash_attn3", "flash_attn2"):
        if name == "flash_attn3":
            from flash_attn_interface import flash_attn_func
        else:
            from flash_attn import flash_attn_func

        def flash(q, k, v):
            o = flash_attn_func(q, k, v, causal=causal)
            return o[0] if isinstance(o, tuple) else o  # some versions return the log-sum-exp too

        return flash
    if name == "flashinfer":
        return flashinfer_way(causal)

    def call(q, k, v):
        with sdpa_kernel(BACKENDS[name]):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def flashinfer_way(causal):
    """Sequences of one length as a packed batch; planned at the first call, outside of graphs."""
    import flashinfer

    wrapper, planned = None, False

    def call(q, k, v):
        nonlocal wrapper, planned
        batch, length, heads, size = q.shape
        if not planned:
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
                torch.empty(128 << 20, dtype=torch.uint8, device=q.device), "NHD"
            )
            starts = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=q.device)
            wrapper.plan(starts, starts, heads, heads, size, causal=causal, q_data_type=q.dtype)
            planned = True
        return wrapper.run(*(x.reshape(batch * length, heads, size) for x in (q, k, v)))

    return call


def inputs_of(name, shape, dtype, device):
    batch, heads, length, size = shape
    sets = []
    for seed in range(SETS if device == "cuda" else 1):
        generator = torch.Generator(device).manual_seed(seed)
        random = lambda: torch.rand(batch, length, heads, size, generator=generator, device=device, dtype=torch.float32) * 2 - 1
        tensors = [random().to(dtype) for _ in range(4)]
        if name not in ROWS_FIRST:
            tensors = [t.transpose(1, 2) for t in tensors]
        for t in tensors[:3]:
            t.requires_grad_()
        sets.append(tensors)
    return sets


def median_ms(calls, device, repeats):
    """Of one of `calls`, run in turn."""
    if device == "cpu":
        calls[0]()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            calls[0]()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls * 2:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(CALLS):
            calls[n % len(calls)]()
    times = []
    for n in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if n >= 2:
            times.append(begin.elapsed_time(end) / CALLS)
    return statistics.median(times)


def measure(name, shape, args, device, dtype):
    way = way_of(name, args.causal)
    sets = inputs_of(name, shape, dtype, device)

    def forward(q, k, v, _):
        with torch.no_grad():
            return way(q, k, v)

    def both(q, k, v, d_o):
        return torch.autograd.grad(way(q, k, v), (q, k, v), d_o)

    forward_ms = median_ms([lambda s=s: forward(*s) for s in sets], device, args.repeats)
    both_ms = None
    if name not in FORWARD_ONLY:
        both_ms = median_ms([lambda s=s: both(*s) for s in sets], device, args.repeats)
    batch, heads, length, size = shape
    gflop = 4e-9 * batch * heads * length * length * size * (0.5 if args.causal else 1.0)
    line = {
        "what": "attention",
        "implementation": name,
        "batch": batch,
        "heads": heads,
        "length": length,
        "head_size": size,
        "causal": args.causal,
        "type": args.dtype,
        "forward_ms": round(forward_ms, 5),
        "forward_tflops": round(gflop / forward_ms, 2),
    }
    if both_ms is not None:
        line["forward_and_backward_ms"] = round(both_ms, 5)
        line["forward_and_backward_tflops"] = round(3.5 * gflop / both_ms, 2)
    line["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    line["torch"] = torch.__version__
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=4, action="append", required=True, metavar=("BATCH", "HEADS", "LENGTH", "HEAD_SIZE"))
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--only", nargs="+", choices=WAYS)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=11)
    args = parser.parse_args()
    for shape in args.shape:
        for name in args.only or WAYS:
            try:
                measure(name, shape, args, args.device, DTYPES[args.dtype])
            except (RuntimeError, ImportError, ValueError) as error:
                print(f"{name} at {shape}: {str(error).splitlines()[0]}", file=sys.stderr)


if __name__ == "__main__":
    main()
