#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention by PyTorch's ways and by Saturate, in one process: one JSON line each.

    pytorch_attention.py --shape 32 12 1024 64 --causal --dtype bf16
    pytorch_attention.py --shape 784 8 32 64 --shape 256 8 64 64 --dtype bf16 --only cudnn efficient saturate
    pytorch_attention.py --shape 8 16 2048 128 --causal --only packages cudnn flash saturate

Several shapes are measured one after the other. A shape is BATCH HEADS LENGTH HEAD_SIZE, causal counts half, backward counts 2.5 times forward. On a GPU: medians of
replays of a CUDA graph of 12 calls over three sets of inputs, larger together than L2 at training shapes, uniform in
[-1, 1). Ways: eager (the formula), math, flash, efficient, cudnn (backends of scaled_dot_product_attention), saturate
(the Python package, if it is installed), and `packages`, those of the following that are installed: flash_attn4
(flash_attn.cute), flash_attn3 (flash_attn_interface), flash_attn2 (flash_attn), flashinfer (forward only), and minimal,
the teaching kernel flash-attention-minimal built as module minimal_attn (fp32, forward only, no mask; it copies from the
host in each call, so the medians are those of calls, not of a graph). A way that the shape or the machine does not offer
prints why on stderr. Each line has what the way's results differ by from those of the formula in fp32 (first sentence and
head): the largest element of |o - reference| and of the gradients', over the largest of the reference. `saturate bench
attention --ladder --peers FILE` puts these lines beside every kernel of its own.
"""

import argparse
import importlib.metadata
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
PACKAGES = ("flash_attn4", "flash_attn3", "flash_attn2", "flashinfer", "minimal")
WAYS = ("eager", *BACKENDS, *PACKAGES, "saturate")
FORWARD_ONLY = {"flashinfer", "minimal"}
ROWS_FIRST = {*PACKAGES, "saturate"} - {"minimal"}  # (batch, length, heads, size)
WITHOUT_GRAPH = {"minimal"}
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

    if name in ("flash_attn4", "flash_attn3", "flash_attn2"):
        if name == "flash_attn4":
            from flash_attn.cute import flash_attn_func
        elif name == "flash_attn3":
            from flash_attn_interface import flash_attn_func
        else:
            from flash_attn import flash_attn_func

        def flash(q, k, v):
            o = flash_attn_func(q, k, v, causal=causal)
            return o[0] if isinstance(o, tuple) else o  # some versions return the log-sum-exp too

        return flash
    if name == "flashinfer":
        return flashinfer_way(causal)
    if name == "minimal":
        if causal:
            raise ValueError("flash-attention-minimal has no mask")
        import minimal_attn

        def minimal(q, k, v):
            if q.dtype != torch.float32 or q.shape[2] % 32:
                raise ValueError("flash-attention-minimal takes fp32 and lengths that are multiples of 32")
            return minimal_attn.forward(q.contiguous(), k.contiguous(), v.contiguous())

        return minimal

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
        return wrapper.run(*(x.reshape(batch * length, heads, size) for x in (q, k, v))).view(q.shape)

    return call


def version_of(name):
    """Of the package that a way is from; None for PyTorch's own, and where it does not say."""
    package = {"flash_attn4": "flash-attn-4", "flash_attn3": "flash-attn-3", "flash_attn2": "flash-attn", "flashinfer": "flashinfer-python"}.get(name)
    try:
        return importlib.metadata.version(package) if package else None
    except importlib.metadata.PackageNotFoundError:
        return None


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


def median_ms(calls, device, repeats, graphs):
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
    if graphs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for n in range(CALLS):
                calls[n % len(calls)]()
    times = []
    for n in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay() if graphs else calls[n % len(calls)]()
        end.record()
        end.synchronize()
        if n >= 2:
            times.append(begin.elapsed_time(end) / (CALLS if graphs else 1))
    return statistics.median(times)


def errors_of(way, name, tensors, causal):
    """Of o, and of the gradients, in the first sentence and head: the largest difference from the formula in fp32 over its largest element."""
    first = lambda t: (t[:1, :, :1].transpose(1, 2) if name in ROWS_FIRST else t[:1, :1]).detach().float()
    inputs = [first(t).requires_grad_() for t in tensors[:3]]
    expected = eager(*inputs, causal)
    backward = name not in FORWARD_ONLY
    with torch.set_grad_enabled(backward):
        found = way(*tensors[:3])
    pairs = [[(first(found), expected.detach())], []]
    if backward:
        pairs[1] = list(zip(map(first, torch.autograd.grad(found, tensors[:3], tensors[3])), torch.autograd.grad(expected, inputs, first(tensors[3]))))
    return [max(((a - b).abs().max() / b.abs().max()).item() for a, b in each) if each else None for each in pairs]


def measure(name, shape, args, device, dtype):
    way = way_of(name, args.causal)
    sets = inputs_of(name, shape, dtype, device)

    def forward(q, k, v, _):
        with torch.no_grad():
            return way(q, k, v)

    def both(q, k, v, d_o):
        return torch.autograd.grad(way(q, k, v), (q, k, v), d_o)

    graphs = name not in WITHOUT_GRAPH
    errors = errors_of(way, name, sets[0], args.causal)
    forward_ms = median_ms([lambda s=s: forward(*s) for s in sets], device, args.repeats, graphs)
    both_ms = None
    if name not in FORWARD_ONLY:
        both_ms = median_ms([lambda s=s: both(*s) for s in sets], device, args.repeats, graphs)
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
        "forward_error": float(f"{errors[0]:.2e}"),
    }
    if both_ms is not None:
        line["forward_and_backward_ms"] = round(both_ms, 5)
        line["forward_and_backward_tflops"] = round(3.5 * gflop / both_ms, 2)
        line["gradient_error"] = float(f"{errors[1]:.2e}")
    if version := version_of(name):
        line["version"] = version
    line["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    line["torch"] = torch.__version__
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=4, action="append", required=True, metavar=("BATCH", "HEADS", "LENGTH", "HEAD_SIZE"))
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--only", nargs="+", choices=(*WAYS, "packages"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=11)
    args = parser.parse_args()
    ways = [w for name in args.only or WAYS for w in (PACKAGES if name == "packages" else (name,))]
    for shape in args.shape:
        for name in ways:
            try:
                measure(name, shape, args, args.device, DTYPES[args.dtype])
            except Exception as error:  # whatever a package raises, the others are still measured
                said = str(error).splitlines()
                print(f"{name} at {shape}: {type(error).__name__}: {said[0] if said else ''}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
