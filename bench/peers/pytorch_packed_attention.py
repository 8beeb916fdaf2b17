#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention over packed sequences of given lengths, by PyTorch's ways and by Saturate, in one process: JSON lines.

    pytorch_packed_attention.py [--lengths FILE] [--heads 8] [--size 64] [--causal] [--dtype bf16]

FILE has one length a line, in the order of the batch; by default multi30k_lengths.txt, 25,080 tokens of Multi30k's English
training sentences in 8,000 pieces. Ways: "padded" (scaled_dot_product_attention's memory-efficient and
flash backends over all sequences padded to the longest, nothing masked, as if padding were free of the mask's cost),
"sorted" (the same in 8 groups of equal size by length, each padded to its own longest), "nested" (nested tensors, jagged
layout), "varlen" (torch.nn.attention.varlen, where this PyTorch has it), "saturate". Medians of replays of a CUDA graph
where the way can be captured, else (nested) of calls timed with events.
"""

import argparse
import json
import os
import statistics
import sys

import torch
from pytorch_attention import BACKENDS, DTYPES, median_ms
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

GROUPS, SETS, REPEATS = 8, 3, 11


def random(shape, dtype, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.rand(*shape, generator=generator, device="cuda") * 2 - 1).to(dtype)


def padded(name, lengths, args, dtype, groups):
    """Calls of one set of inputs each: forward, and forward and backward."""
    ordered = sorted(lengths)
    size = -(-len(ordered) // groups)
    parts = [ordered[i : i + size] for i in range(0, len(ordered), size)]

    def make(seed):
        return [[random((len(p), args.heads, max(p), args.size), dtype, seed + n) for n in range(4)] for p in parts]

    def way(q, k, v):
        with sdpa_kernel(BACKENDS[name]):
            return scaled_dot_product_attention(q, k, v, is_causal=args.causal)

    return make, lambda inputs: [(way, one) for one in inputs]


def packed(lengths, args, dtype, function):
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    rows, longest = sum(lengths), max(lengths)

    def make(seed):
        return [[random((rows, args.heads, args.size), dtype, seed + n) for n in range(4)]]

    return make, lambda inputs: [(lambda q, k, v: function(q, k, v, offsets, longest), one) for one in inputs]


def saturate_way(lengths, args, dtype):
    import saturate

    return packed(lengths, args, dtype, lambda q, k, v, offsets, longest: saturate.attention(
        q, k, v, causal=args.causal, cu_seqlens_q=offsets, max_seqlen_q=longest))


def varlen_way(lengths, args, dtype):
    from torch.nn.attention.varlen import varlen_attn

    one = torch.zeros(1, 1, 64, device="cuda", dtype=dtype)
    offsets = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    try:
        varlen_attn(one, one, one, offsets, offsets, 1, 1, is_causal=False)
        causal = {"is_causal": args.causal}
    except TypeError:  # later releases say it by a window
        causal = {"window_size": (-1, 0) if args.causal else (-1, -1)}
    return packed(lengths, args, dtype, lambda q, k, v, offsets, longest: varlen_attn(
        q, k, v, offsets, offsets, longest, longest, **causal))


def nested_way(lengths, args, dtype):
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device="cuda")
    rows = sum(lengths)

    def make(seed):
        return [[random((rows, args.heads, args.size), dtype, seed + n) for n in range(4)]]

    def way(q, k, v):
        q, k, v = (torch.nested.nested_tensor_from_jagged(x, offsets, max_seqlen=max(lengths)).transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=args.causal).transpose(1, 2).values()

    return make, lambda inputs: [(way, one) for one in inputs]


def timed(call):
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measure(name, make, calls, capture):
    sets = [make(10 * seed) for seed in range(SETS)]
    for inputs in sets:
        for one in inputs:
            for t in one[:3]:
                t.requires_grad_()

    def forward(inputs):
        with torch.no_grad():
            for way, (q, k, v, _) in calls(inputs):
                way(q, k, v)

    def both(inputs):
        for way, (q, k, v, d_o) in calls(inputs):
            torch.autograd.grad(way(q, k, v), (q, k, v), d_o)

    if capture:
        return [median_ms([lambda s=s, f=f: f(s) for s in sets], "cuda", REPEATS) for f in (forward, both)]
    return [timed(lambda f=f: f(sets[0])) for f in (forward, both)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default=os.path.join(os.path.dirname(__file__), "multi30k_lengths.txt"), metavar="FILE")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    args = parser.parse_args()
    with open(args.lengths) as file:
        lengths = [int(line) for line in file]
    dtype = DTYPES[args.dtype]
    ways = {f"padded {b}": lambda b=b: (*padded(b, lengths, args, dtype, 1), True) for b in ("efficient", "flash")}
    ways |= {f"sorted {b}": lambda b=b: (*padded(b, lengths, args, dtype, GROUPS), True) for b in ("efficient", "flash")}
    ways |= {
        "nested": lambda: (*nested_way(lengths, args, dtype), False),
        "varlen": lambda: (*varlen_way(lengths, args, dtype), True),
        "saturate": lambda: (*saturate_way(lengths, args, dtype), True),
    }
    for name, build in ways.items():
        try:
            forward_ms, both_ms = measure(name, *build())
        except (RuntimeError, ImportError, ValueError, TypeError, AttributeError) as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        print(json.dumps({
            "what": "packed attention", "implementation": name, "sequences": len(lengths), "rows": sum(lengths),
            "longest": max(lengths), "heads": args.heads, "head_size": args.size, "causal": args.causal,
            "type": args.dtype, "forward_ms": round(forward_ms, 5), "forward_and_backward_ms": round(both_ms, 5),
            "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        }), flush=True)


if __name__ == "__main__":
    main()
