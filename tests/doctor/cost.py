#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What watching a program costs it, on a GPU: `cost.py --doctor PROGRAM`.

Each case runs without the doctor and under it, in turns, and once under one that waits to record (`--delay`: calls and
graphs are noticed). One more watched run is recorded in its middle third only, so that recorded and unrecorded stretches
of one run can be compared as well. Windows are a second long and up to 64 s apart: short runs are recorded more than
long ones.

The pace of a core changes more than what is measured (pace.py). So the loop stays on the core that is quickest when it
begins, a fixed piece of Python is timed before and after each stretch, and a launch-bound case is told in units of it,
without the stretches in which it took over 1.12 times its least tenth.

A line of JSON a case: step times over the stretches left (of a run time by steps, of recorded and unrecorded ones the
median), their share, and the ratios, of both comparisons and over the whole run. Exit code 1 beyond the limits.
"""
import argparse
import json
import os
import subprocess
import sys
import time

from pace import quickest_core, reference_ms

LIMITS = {"graph": 0.02, "compiled": 0.02, "paced": 0.05}  # of the step time, over a run
HOST_BOUND = {"launches", "paced"}
CHUNK_S = {"launches": 0.025, "paced": 0.025}  # of steps, then a wait for the device
PACED_WORK = 800  # turns of an empty loop beside each launch, to come down to about 100,000 launches a second


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def mean_step(values):
    """Of stretches of one length: their time by their steps."""
    return len(values) / sum(1 / v for v in values)


def make_step(case):
    import torch

    import models
    if case in HOST_BOUND:  # an operator on one element, as fast as one thread can from Python, or with work between
        x, work = torch.zeros(1, device="cuda"), range(PACED_WORK if case == "paced" else 0)

        def step():
            x.add_(1)
            for _ in work:
                pass
        return step, 200
    width, layers, rows = (1024, 16, 2048) if case == "graph" else (2048, 8, 4096 if case == "eager" else 16384)
    train = models.Trainer(models.perceptron(width, layers))
    batch = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    if case == "graph":
        graph = train.capture(batch)
        return graph.replay, 1
    if case == "compiled":
        train.model = torch.compile(train.model)
    return (lambda: train(batch)), 1


def perform(given):
    """The watched program: prints when its steps begin, in seconds since its start of CUDA, and of short stretches such a time,
    milliseconds a step and milliseconds of the reference."""
    import torch
    started = time.perf_counter()
    torch.cuda.init()
    step, at_once = make_step(given.case)
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    os.sched_setaffinity(0, {quickest_core()[0]})  # threads of CUDA and PyTorch, which are there, may run anywhere
    chunks, now = [], time.perf_counter()
    ready_s = now - started
    while now - started < ready_s + given.seconds:
        before = reference_ms()
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < CHUNK_S.get(given.case, 0.2):
            for _ in range(at_once):
                step()
            steps += at_once
        issued = time.perf_counter()
        torch.cuda.synchronize()
        now = time.perf_counter()
        took = issued if given.case in HOST_BOUND else now
        chunks.append((round(now - started, 3), 1e3 * (took - begin) / steps, (before + reference_ms()) / 2))
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
        runs = {"alone": [], "watched": [], "idle": []}
        for _ in range(given.rounds):
            for name, watch in (("alone", None), ("watched", [])):
                runs[name].append(run(given, case, watch))
        runs["idle"].append(run(given, case, ["--delay", "86400"]))
        begin = median([r["ready_s"] for r in runs["idle"]]) + third
        inside = run(given, case, ["--delay", str(begin), "--duration", str(third)])
        references = sorted(c[2] for of in [*runs.values(), [inside]] for r in of for c in r["chunks"])
        calm = 1.12 * references[len(references) // 10] if case in HOST_BOUND else references[-1]
        unit = median([r for r in references if r <= calm])

        def step_ms(chunks):
            return [ms * unit / reference if case in HOST_BOUND else ms for _, ms, reference in chunks if reference <= calm]

        left = {name: sum((step_ms(r["chunks"]) for r in of), []) for name, of in runs.items()}
        if not all(left.values()):
            print(f"{case}: the machine was never calm in one kind of run; nothing to compare", file=sys.stderr)
            missed = True
            continue
        means = {name: mean_step(of) for name, of in left.items()}
        on = step_ms([c for c in inside["chunks"] if begin + 0.3 < c[0] < begin + third - 0.3])
        off = step_ms([c for c in inside["chunks"] if c[0] < begin - 0.3 or c[0] > begin + third + 0.3])
        row = {"what": "cost", "case": case, "step_ms": means["alone"], "watched_ms": means["watched"],
               "idle_ms": means["idle"],  # the doctor is there and waits
               "over_the_run": round(means["watched"] / means["alone"] - 1, 4),
               "recorded_ms": median(on) if on else None, "unrecorded_ms": median(off) if off else None,
               "while_recorded": round(median(on) / median(off) - 1, 4) if on and off else None,
               "stretches": len(references), "kept": round(sum(r <= calm for r in references) / len(references), 2),
               "reference_ms": unit}
        print(json.dumps(row), flush=True)
        missed = missed or row["over_the_run"] > LIMITS.get(case, 1)
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doctor", default="saturate", help="the program saturate")
    parser.add_argument("--cases", nargs="+", default=["graph", "compiled", "paced", "launches"],
                        choices=["graph", "compiled", "paced", "launches", "eager"])
    parser.add_argument("--seconds", type=float, default=6, help="of steps, a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--perform", dest="case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    return perform(given) if given.case else measure(given)


if __name__ == "__main__":
    sys.exit(main())
