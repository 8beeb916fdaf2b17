#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a recorded trace small enough to keep: `trim.py in.json.gz out.json.gz [SHARE]`.

Keeps what the doctor reads of it: the work of the device, the calls of CUDA, annotations and overheads; with SHARE
only what begins in that share of the time, from the start.
"""
import gzip
import json
import sys

KEPT = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "overhead"}
ARGUMENTS = {"correlation", "device", "context", "stream", "bytes", "grid", "block"}


def trim(trace, share=1.0):
    """Drop operators, addresses and sizes that no report needs."""
    times = [e["ts"] for e in trace["traceEvents"] if e.get("cat") in KEPT]
    origin, until = min(times), min(times) + share * (max(times) - min(times))
    events = []
    for event in trace["traceEvents"]:
        if event.get("ph") != "X" or event["ts"] > until:
            continue
        loader = event["name"].startswith("enumerate(DataLoader)")
        if event.get("cat") not in KEPT and not loader:
            continue
        arguments = {k: v for k, v in event.get("args", {}).items() if k in ARGUMENTS}
        events.append({"ph": "X", "cat": event["cat"], "name": event["name"][:100], "pid": event["pid"],
                       "tid": event["tid"], "ts": round(event["ts"] - origin, 3), "dur": event["dur"],
                       "args": arguments})
    kept = {k: trace[k] for k in ("schemaVersion", "deviceProperties") if k in trace}
    return dict(kept, traceEvents=events)


if __name__ == "__main__":
    with gzip.open(sys.argv[1], "rt") as file:
        small = trim(json.load(file), float(sys.argv[3]) if len(sys.argv) > 3 else 1.0)
    with open(sys.argv[2], "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as out:
        out.write(json.dumps(small, separators=(",", ":")).encode())
