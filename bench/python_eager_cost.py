#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an eager call of the Python package costs on the host, in microseconds: one JSON line each.

    PYTHONPATH=build/python python3 bench/python_eager_cost.py
    SATURATE_OTHER=other/build/python ...: the same by another build in a process of its own, in turns

Problems are so small that the device is done before the next call comes. Medians of rounds of calls without
synchronisation in between; each round ends with one. All calls take turns, a round each: a host whose clock changes
for half a second would else slow one of them alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def calls(torch, saturate, device, dtype):
    def tensor(*shape):
        return torch.randn(*shape, device=device).to(dtype)

    q, k, v = (tensor(2, 64, 4, 64) for _ in range(3))
    a, b = tensor(64, 64), tensor(64, 64)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    grad = tensor(2, 64, 4, 64)

    def backward():
        saturate.attention(*leaves, causal=True).backward(grad)

    yield "matmul", lambda: saturate.matmul(a, b)
    yield "attention", lambda: saturate.attention(q, k, v, causal=True)
    yield "attention, window and cap", lambda: saturate.attention(q, k, v, causal=True, window=(32, 0), softcap=30.0)
    yield "attention, forward and backward", backward
    yield "torch.matmul", lambda: torch.matmul(a, b)
    yield "torch scaled_dot_product_attention", lambda: torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)


def measure(rounds, repeats):
    import saturate
    import torch

    on_gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    named = list(calls(torch, saturate, device, dtype))
    times = {name: [] for name, _ in named}
    for turn in range(rounds + 1):
        for name, call in named:
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            seconds = time.perf_counter() - begin
            wait()
            if turn > 0:  # the first warms up
                times[name].append(seconds / repeats * 1e6)
    return device, {name: statistics.median(t) for name, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--repeats", type=int, default=100, help="calls of a round")
    parser.add_argument("--turns", type=int, default=5, help="processes of each build, in turns, with SATURATE_OTHER")
    parser.add_argument("--raw", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.raw:
        print(json.dumps(measure(o.rounds, o.repeats)))
        return
    other = os.environ.get("SATURATE_OTHER")
    if not other:
        device, results = measure(o.rounds, o.repeats)
        for name, us in results.items():
            print(json.dumps({"what": "python_eager_cost", "device": device, "call": name, "us": round(us, 2)}))
        return
    paths = {"this": os.environ.get("PYTHONPATH", ""), "other": other}
    seen = {build: {} for build in paths}
    for _ in range(o.turns):
        for build, path in paths.items():
            command = [sys.executable, __file__, "--raw", "--rounds", str(o.rounds), "--repeats", str(o.repeats)]
            output = subprocess.run(command, env=dict(os.environ, PYTHONPATH=path), check=True, capture_output=True)
            device, results = json.loads(output.stdout)
            for name, us in results.items():
                seen[build].setdefault(name, []).append(us)
    for name in seen["this"]:
        this, before = (statistics.median(seen[build][name]) for build in ("this", "other"))
        print(json.dumps({"what": "python_eager_cost", "device": device, "call": name, "us": round(this, 2),
                          "other_us": round(before, 2), "ratio": round(this / before, 3)}))


if __name__ == "__main__":
    main()
