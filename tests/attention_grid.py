#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention's errors over the study's grid, forward and gradients, beside PyTorch's: one JSON line a case.

    attention_grid.py                    # the grid and odd lengths (GPU)
    attention_grid.py --quick            # the grid's corners and odd lengths
    attention_grid.py --sets odd --device cpu

The truth is the formula in double precision on the same device, a few heads at a time. Inputs are unit normal; those of
fp16 and bf16 are the same numbers, rounded so that both types hold them, and share one truth; those of fp32 have all
their bits. An error is that of o, d_q, d_k or d_v:

    max_abs     the largest |x - truth|
    mean_rel    the mean of |x - truth| / (|truth| + 0.01 mean |truth|); 0 where the truth is 0 all over, as d_q and d_k
                are for queries that see a single key
    ratio       the larger of max_abs and mean |x - truth|, each divided by the same of the formula in PyTorch at that type
                (eager, unfused) plus 1e-5, or plus 5e-5 where the truth is 0, which PyTorch happens to hit

Limits: fp32 max_abs < 1e-4 max(1, mean |truth|), where only d_v for few keys and many queries has a mean above 1, and
mean_rel < 1e-3; fp16 and bf16 ratio <= 2; nothing infinite or NaN. Exit status 1 and the cases on stderr when one is
broken. The table at the end (stderr) has the worst case of each row.
"""

import argparse
import itertools
import json
import math
import sys
import time
from collections import defaultdict
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import saturate

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
OUTPUTS = ("o", "d_q", "d_k", "d_v")
ODD_LENGTHS = (1, 3, 113, 239, 799, 1023)
ZERO = 1e-9  # a mean |truth| below this is that of rounding errors in double precision
SCORES_AT_ONCE = 1 << 27  # of the truth: 1 GiB in double precision


class Case(NamedTuple):
    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    causal: bool


def cases_of(name):
    if name == "odd":
        shapes = itertools.product([2], [3], itertools.product(ODD_LENGTHS, ODD_LENGTHS), [64, 128], [False, True])
    else:
        whole = name == "grid"
        lengths = [512, 1024, 2048] if whole else [512, 2048]
        batches, heads = ([1, 2, 4, 8], [8, 16, 32]) if whole else ([1, 8], [8, 32])
        shapes = itertools.product(batches, heads, zip(lengths, lengths), [64, 128], [False, True])
    return [Case(b, h, *lengths, d, causal) for b, h, lengths, d, causal in shapes]


def inputs_of(case, generator, device, rounded):
    """q, k, v, d_o, each (batch, length, heads, head size) in fp32."""

    def normal(length):
        x = torch.randn(case.batch, length, case.heads, case.head_size, generator=generator, device=device)
        return x.bfloat16().half().float() if rounded else x

    return normal(case.queries), normal(case.keys), normal(case.keys), normal(case.queries)


def hidden_of(case, device):
    """(queries, keys): True where the causal mask hides a key; None without one."""
    if not case.causal:
        return None
    return torch.ones(case.queries, case.keys, dtype=torch.bool, device=device).triu(1)


def truth_of(case, q, k, v, d_o):
    """o, d_q, d_k, d_v in double precision, heads apart: (batch * heads, length, head size)."""
    hidden, scale = hidden_of(case, q.device), case.head_size**-0.5
    heads = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v, d_o)]
    results = [torch.empty(x.shape, dtype=torch.float64, device=q.device) for x in (heads[3], *heads[:3])]
    step = max(1, SCORES_AT_ONCE // (case.queries * case.keys))
    for first in range(0, case.batch * case.heads, step):
        q, k, v, d_o = (x[first : first + step].double() for x in heads)
        p = torch.bmm(q, k.mT).mul_(scale)
        if hidden is not None:
            p.masked_fill_(hidden, -math.inf)
        p = torch.softmax(p, -1)
        o = torch.bmm(p, v)
        d_v = torch.bmm(p.mT, d_o)
        d_s = torch.bmm(d_o, v.mT).sub_((d_o * o).sum(-1, keepdim=True)).mul_(p)
        parts = (o, torch.bmm(d_s, k).mul_(scale), torch.bmm(d_s.mT, q).mul_(scale), d_v)
        for result, part in zip(results, parts):
            result[first : first + step] = part
    return results


def eager(case, q, k, v):
    scores = q @ k.mT * case.head_size**-0.5
    if case.causal:
        scores = scores.masked_fill(hidden_of(case, q.device), -math.inf)
    return scores.softmax(-1) @ v


def efficient(case, q, k, v):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=case.causal)


def ours(case, q, k, v):
    return saturate.attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=case.causal).transpose(1, 2)


def run(way, case, inputs, dtype):
    """o and the gradients of one way, heads apart. Its inputs are (batch, heads, length, head size), strided."""
    q, k, v, d_o = (x.to(dtype).transpose(1, 2) for x in inputs)
    for x in (q, k, v):
        x.requires_grad_()
    o = way(case, q, k, v)
    results = (o.detach(), *torch.autograd.grad(o, (q, k, v), d_o))
    return [x.reshape(-1, *x.shape[2:]) for x in results]


def errors_of(results, truths):
    """Of every output largest, mean and mean relative error, and mean |truth|: (outputs, 4), on the device."""
    rows = []
    for x, truth in zip(results, truths):
        error, size = (x - truth).abs_(), truth.abs()
        mean = size.mean()
        relative = (error / (size + 1e-2 * mean)).mean()
        rows += [error.amax(), error.mean(), torch.where(mean < ZERO, 0.0, relative), mean]
    return torch.stack(rows).view(len(OUTPUTS), 4)


def ratio_of(mine, other):
    floor = 5e-5 if mine[3] < ZERO else 1e-5
    return max(a / (b + floor) for a, b in zip(mine[:2], other[:2]))


def is_within(dtype, mine, ratios):
    if not all(map(math.isfinite, itertools.chain(*mine))):
        return False
    if dtype == "f32":
        return all(largest < 1e-4 * max(1, size) and relative < 1e-3 for largest, _, relative, size in mine)
    return max(ratios) <= 2


def measure(case, dtype, ways, inputs, truths):
    """One JSON line's content."""
    found = {}
    for name, way in ways.items():
        try:
            found[name] = errors_of(run(way, case, inputs, TYPES[dtype]), truths)
        except RuntimeError as error:
            if name != "efficient":
                raise
            print(f"{name} refuses {tuple(case)}: {str(error).splitlines()[0]}", file=sys.stderr)
    numbers = dict(zip(found, torch.stack(list(found.values())).tolist()))  # the case's only wait for the GPU
    mine = numbers["saturate"]
    line = {"what": "attention_error", **case._asdict(), "type": dtype}
    for column, name in ((0, "max_abs"), (2, "mean_rel")):
        line[name] = {output: mine[n][column] for n, output in enumerate(OUTPUTS)}
        for other in found:
            if other != "saturate":
                line[f"{other}_{name}"] = {output: numbers[other][n][column] for n, output in enumerate(OUTPUTS)}
    line["ratio"] = {o: ratio_of(a, b) for o, a, b in zip(OUTPUTS, mine, numbers["eager"])}
    line["within"] = is_within(dtype, mine, line["ratio"].values())
    return line


def summary_of(lines):
    """The worst of each type, head size, mask and direction; one dictionary each."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["type"], line["head_size"], line["causal"]].append(line)
    for (dtype, head_size, causal), members in groups.items():
        for direction, outputs in (("forward", OUTPUTS[:1]), ("backward", OUTPUTS[1:])):
            row = {"type": dtype, "head_size": head_size, "causal": causal, "direction": direction, "cases": len(members)}
            for name in dict.fromkeys(name for m in members for name in m):
                if name == "ratio" or name.endswith(("max_abs", "mean_rel")):
                    row[name] = max(m[name][o] for m in members if name in m for o in outputs)
            yield row


def print_table(rows):
    print(
        f"{'type':>5} {'size':>4} {'mask':>6} {'direction':>9} {'cases':>5} {'max abs':>9} {'eager':>9} {'efficient':>9} "
        f"{'mean rel':>9} {'eager':>9} {'efficient':>9} {'ratio':>6}",
        file=sys.stderr,
    )
    for r in rows:
        errors = [
            f"{r[name]:9.2e}" if name in r else f"{'':9}"
            for name in (way + column for column in ("max_abs", "mean_rel") for way in ("", "eager_", "efficient_"))
        ]
        print(
            f"{r['type']:>5} {r['head_size']:>4} {'causal' if r['causal'] else 'full':>6} {r['direction']:>9} {r['cases']:>5} "
            + " ".join(errors)
            + f" {r['ratio']:6.2f}",
            file=sys.stderr,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=["grid", "corners", "odd"], default=["grid", "odd"])
    parser.add_argument("--quick", action="store_true", help="--sets corners odd")
    parser.add_argument("--types", nargs="+", choices=TYPES, help="default: all on a GPU, f32 on a CPU")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--summary", metavar="FILE", help="append the table's rows to FILE, one JSON line each")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    types = args.types or (list(TYPES) if on_gpu else ["f32"])
    generator = torch.Generator(args.device).manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = False

    lines, start = [], time.perf_counter()
    for case in itertools.chain.from_iterable(map(cases_of, ["corners", "odd"] if args.quick else args.sets)):
        for group in (["f32"], ["f16", "bf16"]):
            group = [t for t in group if t in types]
            if not group:
                continue
            inputs = inputs_of(case, generator, args.device, rounded=group != ["f32"])
            truths = truth_of(case, *inputs)
            for dtype in group:
                ways = {"saturate": ours, "eager": eager}
                if dtype == "f32" and on_gpu:
                    ways["efficient"] = efficient
                lines.append(measure(case, dtype, ways, inputs, truths))
                print(json.dumps(lines[-1]), flush=True)
    seconds = time.perf_counter() - start
    rows = list(summary_of(lines))
    print_table(rows)
    if args.summary:
        where = torch.cuda.get_device_name() if on_gpu else "cpu"
        with open(args.summary, "a") as file:
            for row in rows:
                file.write(json.dumps({"what": "attention_error_worst", **row, "device": where, "torch": torch.__version__}) + "\n")
    broken = [line for line in lines if not line["within"]]
    for line in broken:
        print("beyond the limit:", json.dumps(line), file=sys.stderr)
    print(f"{len(lines)} cases in {seconds:.1f} s, {len(broken)} beyond the limits", file=sys.stderr)
    return 1 if broken or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
