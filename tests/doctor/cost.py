#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What watching a program costs it, on a GPU: `cost.py --doctor PROGRAM`.

Each case runs for a while without the doctor and under it, in turns. One more watched run is recorded in its middle third
only (`--delay`, `--duration`), so that recorded and unrecorded stretches of one run can be compared as well. A line of JSON a
case: medians of the step time and the ratios, of both comparisons and over the whole run. Exit code 1 beyond the limits.
"""
import argparse
import json
import subprocess
import sys
import time

LIMITS = {"graph": 0.02, "compiled": 0.02, "launches": 0.05}  # of the step time, over a run
CHUNK_S = 0.05


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def mean(values):
    return sum(values) / len(values)


def make_step(case):
    import torch

    import models
    if case == "launches":  # as fast as one thread can launch from Python: an operator on one element
        x = torch.zeros(1, device="cuda")
        return (lambda: x.add_(1)), 200
    width, layers, rows = (1024, 16, 2048) if case == "graph" else (2048, 8, 4096)
    train = models.Trainer(models.perceptron(width, layers))
    batch = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    if case == "graph":
        graph = train.capture(batch)
        return graph.replay, 1
    if case == "compiled":
        train.model = torch.compile(train.model)
    return (lambda: train(batch)), 1


def perform(given):
    """The watched program: prints when its steps begin, in seconds since its start of CUDA, and [such a time, milliseconds
    a step] of short stretches."""
    import torch
    started = time.perf_counter()
    torch.cuda.init()
    step, at_once = make_step(given.case)
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    chunks, now = [], time.perf_counter()
    ready_s = now - started
    while now - started < ready_s + given.seconds:
        begin, steps = now, 0
        while time.perf_counter() - begin < CHUNK_S:
            for _ in range(at_once):
                step()
            steps += at_once
        torch.cuda.synchronize()
        now = time.perf_counter()
        chunks.append((round(now - started, 3), 1e3 * (now - begin) / steps))
    print(json.dumps({"ready_s": ready_s, "chunks": chunks}))
    return 0


def run(given, case, watch):
    """What one run printed; `watch`: arguments of the doctor, None for a run without it."""
    command = [sys.executable, __file__, "--perform", case, "--seconds", str(given.seconds)]
    if watch is not None:
        command = [given.doctor, "doctor", "-o", "/dev/null", *watch, "--", *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(given):
    missed = False
    for case in given.cases:
        third = given.seconds / 3
        plain, watched, idle = [], [], []
        for _ in range(given.rounds):
            alone = run(given, case, None)
            plain.append(mean([ms for _, ms in alone["chunks"]]))
            watched.append(mean([ms for _, ms in run(given, case, [])["chunks"]]))
            idle.append(mean([ms for _, ms in run(given, case, ["--delay", "86400"])["chunks"]]))
        begin = alone["ready_s"] + third  # watched, the program gets ready a little later
        inside = run(given, case, ["--delay", str(begin), "--duration", str(third)])["chunks"]
        on = median([ms for at, ms in inside if begin + 0.3 < at < begin + third - 0.3])
        off = median([ms for at, ms in inside if at < begin - 0.3 or at > begin + third + 0.3])
        row = {"what": "cost", "case": case, "step_ms": median(plain), "watched_ms": median(watched),
               "idle_ms": median(idle),  # the doctor is there and records nothing
               "over_the_run": round(median(watched) / median(plain) - 1, 4), "recorded_ms": on, "unrecorded_ms": off,
               "while_recorded": round(on / off - 1, 4)}
        print(json.dumps(row), flush=True)
        missed = missed or row["over_the_run"] > LIMITS.get(case, 1)
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doctor", default="saturate", help="the program saturate")
    parser.add_argument("--cases", nargs="+", default=["graph", "compiled", "launches"],
                        choices=["graph", "compiled", "launches", "eager"])
    parser.add_argument("--seconds", type=float, default=6, help="of steps, a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--perform", dest="case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    return perform(given) if given.case else measure(given)


if __name__ == "__main__":
    sys.exit(main())
