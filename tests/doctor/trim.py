#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a recorded trace small enough to keep: `trim.py in.json.gz out.json.gz [SHARE] [--shapes]`.

Keeps what the doctor reads of it: the work of the device, the calls of CUDA, annotations and overheads; with SHARE
only what begins in that share of the time, from the start; with --shapes also the operators that launched kernels,
with their inputs, and what the allocator held on the device.
"""
import gzip
import json
import sys

KEPT = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "overhead"}
ARGUMENTS = {"correlation", "device", "context", "stream", "bytes", "grid", "block"}
SHAPES = {"External id", "Input Dims", "Input type", "Concrete Inputs"}
MEMORY = {"Total Allocated", "Total Reserved", "Device Id", "Device Type"}


def trim(trace, share=1.0, shapes=False):
    """Drop operators, addresses and sizes that no report needs."""
    launching = {e["args"].get("External id") for e in trace["traceEvents"] if e.get("cat") == "kernel"}
    times = [e["ts"] for e in trace["traceEvents"] if e.get("cat") in KEPT]
    origin, until = min(times), min(times) + share * (max(times) - min(times))
    events = []
    for event in trace["traceEvents"]:
        arguments = event.get("args", {})
        if event.get("ph") == "i" and event["name"] == "[memory]" and event["ts"] <= until:
            if shapes and arguments.get("Device Type") == 1:
                events.append({"ph": "i", "cat": event["cat"], "name": event["name"], "ts": round(event["ts"] - origin, 3),
                               "args": {k: v for k, v in arguments.items() if k in MEMORY}})
            continue
        if event.get("ph") != "X" or event["ts"] > until:
            continue
        loader = event["name"].startswith("enumerate(DataLoader)")
        operator = shapes and event.get("cat") == "cpu_op" and arguments.get("External id") in launching
        if event.get("cat") not in KEPT and not loader and not operator:
            continue
        wanted = SHAPES | ARGUMENTS if shapes else ARGUMENTS
        arguments = {k: v for k, v in arguments.items() if k in wanted}
        events.append({"ph": "X", "cat": event["cat"], "name": event["name"][:100], "pid": event["pid"],
                       "tid": event["tid"], "ts": round(event["ts"] - origin, 3), "dur": event["dur"],
                       "args": arguments})
    kept = {k: trace[k] for k in ("schemaVersion", "deviceProperties") if k in trace}
    return dict(kept, traceEvents=events)


if __name__ == "__main__":
    with gzip.open(sys.argv[1], "rt") as file:
        shares = [float(a) for a in sys.argv[3:] if a != "--shapes"]
        small = trim(json.load(file), *shares, shapes="--shapes" in sys.argv)
    with open(sys.argv[2], "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as out:
        out.write(json.dumps(small, separators=(",", ":")).encode())
