#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of programs that were written from users' complaints, before any change is made for them.

    first_reading.py read FOLDER --doctor PROGRAM [--only NAME ...]    on GPUs; about a minute a program
    first_reading.py read FOLDER --doctor PROGRAM --open CHECKOUTS     programs of public repositories, see ../open
    first_reading.py judge FOLDER [--jsonl FILE]                       anywhere; exit code 1 where a limit is missed

`read` runs each program beside this file planted and fixed in turns without the doctor, then planted and healthy under
it, and keeps the reports in FOLDER. Several programs start side by side; the steps of one have the GPU, and a share of
the cores, for themselves (BLIND_GPU_LOCK of blind.py). Those of several ranks come last, alone. A program that fails is
said, and left out of the judgement.
"""
import argparse
import ast
import concurrent.futures
import json
import os
import pathlib
import re
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
OPEN = HERE.parent / "open"
# Verdicts that name a cause of blind.Loop, and the fixes whose bound speaks of it. What the doctor has no name for
# (disk, network, locks, recompilation, checkpoints) counts as named by the nearest it has.
CAUSES = {
    "input": (("input_bound",), ("loader",)),
    "host": (("host_bound",), ("host_work",)),
    "sync": (("sync_bound",), ("syncs",)),
    "launch": (("launch_bound",), ("graphs", "micro_batches", "batch", "fusion")),
    "copy": (("copy_bound",), ("copies", "transfers", "fewer_bytes")),
    "allocation": (("allocation_bound",), ("allocator",)),
    "memory": (("allocation_bound", "gpu_bound"), ("allocator", "fusion", "layout", "attention", "recompute", "device_copies", "kernel_copies", "transforms", "sorts", "one_attention", "slow_kernels")),
    "precision": (("gpu_bound",), ("precision", "mixed_precision", "weight_casts", "product_types", "float64")),
    "disk": (("input_bound", "host_bound"), ("loader", "host_work")),
    # A network that data comes over, or the one between the ranks of a program.
    "network": (("input_bound", "host_bound", "communication_bound"), ("loader", "host_work", "communication")),
    "lock": (("host_bound", "core_bound", "input_bound"), ("host_work", "cores", "loader")),
    "threads": (("core_bound", "input_bound", "host_bound"), ("cores", "loader", "host_work")),
    "recompile": (("host_bound", "load_bound"), ("host_work", "code_load")),
    "growth": (("growth_bound", "host_bound", "launch_bound", "gpu_bound"), ("growth", "host_work")),
    "straggler": (("straggler_bound", "imbalance_bound"), ("straggler", "all")),
    "checkpoint": (("host_bound", "copy_bound"), ("host_work", "copies")),
    "none": (("gpu_bound",), ()),
}
NOTHING = ("", 1.0, True, None)  # offered: its id, the promise, whether at most that, and a range
RIGHT, ABOVE_CEILING, HEALTHY, MEAN_ERROR, CAUSE_MS, IN_RANGE = 0.90, 1.03, 1.03, 0.10, 0.05, 0.95
LONGEST_S, FEWEST_STEPS = 300, 60
HELD_TOO_LONG = (-signal.SIGALRM, 128 + signal.SIGALRM)  # as Python and as a shell or the doctor say it


def programs():
    others = ("blind", "blind_test", "first_reading", "training")
    return sorted(p.stem for p in HERE.glob("*.py") if p.stem not in others)


def open_programs():
    return sorted(p.stem for p in OPEN.glob("*.py") if not p.stem.startswith("open_"))


def case_of(name):
    """What a program of a public repository says of itself."""
    return runpy.run_path(str(OPEN / f"{name}.py"))


def ranks_of(name):
    """Programs of several ranks say RANKS = N on a line of their own."""
    if name in open_programs():
        return 1
    for node in ast.parse((HERE / f"{name}.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "RANKS":
            return node.value.value
    return 1


def warm_up_of(name):
    """Steps that a program leaves out of its own measurement."""
    own = re.search(r"warm_up=(\d+)", (HERE / f"{name}.py").read_text("utf-8"))
    return int(own[1]) if own else 20


def command(name, variant, given):
    """How a program is started, with a share of the steps that it would take by itself."""
    if given.open:
        variant = "repaired" if variant == "fixed" else variant
        own = case_of(name).get("STEPS", 300)
        steps = max(min(FEWEST_STEPS, own), round(given.scale * own))
        return [sys.executable, str(OPEN / "open_case.py"), name, variant, "--repositories", given.open, "--steps", str(steps)]
    line = [str(HERE / f"{name}.py"), variant]
    own = re.search(r"steps=(\d+)", (HERE / f"{name}.py").read_text("utf-8"))
    if given.scale != 1.0 and own:
        line += ["--steps", str(max(FEWEST_STEPS, round(given.scale * int(own[1]))))]
    if ranks_of(name) > 1:
        return ["torchrun", "--standalone", "--nproc-per-node", str(ranks_of(name)), *line]
    return [sys.executable, *line]


def run(line, gpu, gpus, hold=0):
    """The line of JSON that a program prints, or None and its error. gpu: None for a program of several ranks. hold:
    seconds after which a program that has the GPU for itself is ended, 0 for never."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # else JAX takes the others' memory
    if gpu is not None:
        share = os.cpu_count() // gpus
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        environment["BLIND_GPU_LOCK"] = f"{tempfile.gettempdir()}/blind-gpu-{gpu}"
        environment["BLIND_GPU_SECONDS"] = str(hold)
        line = ["taskset", "--cpu-list", f"{gpu * share}-{gpu * share + share - 1}", *line]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LONGEST_S, env=environment)
    except subprocess.TimeoutExpired:
        return None, f"not done after {LONGEST_S} s"
    for text in done.stdout.splitlines():
        if text.startswith('{"program"'):
            return json.loads(text), ""
    if done.returncode in HELD_TOO_LONG:
        return None, f"it stood still: its steps were not done {hold} s after it had the GPU"
    return None, (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]


def read_one(name, gpu, given):
    folder = pathlib.Path(given.folder)
    row = {"program": name, "alone": {"planted": [], "fixed": []}, "errors": {}}

    def keep():  # after each run: what was measured outlives a reading that is stopped
        (folder / f"{name}.row.json").write_text(json.dumps(row))

    for _ in range(given.turns):
        for variant, seen in row["alone"].items():
            result, error = run(command(name, variant, given), gpu, given.gpus, given.hold)
            if result:
                seen.append(result)
            else:
                row["errors"][variant] = error
            keep()
    for variant in ("planted",) if given.open else ("planted", "healthy"):
        options = ["--format", "json", "-o", str(folder / f"{name}.{variant}.json")]
        options += ["--library", given.library] if given.library else []
        options += ["--keep", str(folder / f"{name}.{variant}")] if given.keep else []
        line = [given.doctor, "doctor", *options, "--", *command(name, variant, given)]
        row[variant], error = run(line, gpu, given.gpus, given.hold)
        if not row[variant]:
            row["errors"]["doctor, " + variant] = error
        keep()
    for cause in case_of(name).get("OTHER_REPAIRS", {}) if given.open else ():
        row.setdefault("others", {})[cause], error = run(command(name, cause, given), gpu, given.gpus, given.hold)
        if error:
            row["errors"][cause] = error
        keep()
    if given.keep and not given.open:  # once more, over the steps that the program measured
        subprocess.run([given.doctor, "doctor", "--warmup", str(warm_up_of(name)), "--format", "json", "-o",
                        str(folder / f"{name}.same_steps.json"), str(folder / f"{name}.planted")], capture_output=True)
    print(name, "; ".join(f"{k}: {v}" for k, v in row["errors"].items()) or "read", flush=True)


def read(given):
    pathlib.Path(given.folder).mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.seconds if given.seconds else float("inf")
    names = given.only or (open_programs() if given.open else programs())
    queue = iter([n for n in names if ranks_of(n) == 1])

    def lane(gpu):
        for name in queue:
            if time.monotonic() > end:
                break
            read_one(name, gpu, given)

    with concurrent.futures.ThreadPoolExecutor(given.gpus * given.lanes) as pool:
        for done in [pool.submit(lane, gpu % given.gpus) for gpu in range(given.gpus * given.lanes)]:
            done.result()
    for name in names:
        if ranks_of(name) > 1 and time.monotonic() < end:
            if given.gpus < ranks_of(name):
                print(f"{name}: needs {ranks_of(name)} GPUs, not read")
            else:
                read_one(name, None, given)
    return 0


def offers(report):
    """What is promised: fixes of one process, and of ranks; an estimate with its range, where it has one."""
    ranks = (report.get("ranks") or {}).get("bounds", [])
    fixes = [(f["id"], f["speedup_at_most"], f["is_ceiling"], f.get("range"))
             for f in report["fixes"] + report.get("possible", [])]
    return fixes + [(b["id"], b["speedup"], b["is_ceiling"], None) for b in ranks if b["speedup"]]


def planted_functions(text):
    """The functions that a program's text names as the place of its plant: "Line: file.py:draw and Buffer.change (why)"."""
    said = re.search(r"^Line: \S+?\.py:(.*)", text, re.MULTILINE)
    if not said:
        return []
    names = re.split(r",|\.(?:\s|$)", re.sub(r"\(.*?(\)|$)", "", said[1]))[0].replace(" and ", " ").split()
    return [name.split(".")[-1] for name in names]


def line_of(report, program=""):
    """The function and text of the line that a report's verdict names, of older reports the first of its lines: of a
    worker where the launching thread only waits; of its caller where it lies in a file that programs share; of who
    holds the interpreter's lock where it waits for that."""
    named = report["verdict"].get("line")
    if named and named.get("lock_holder"):
        holder = named["lock_holder"]
        return holder["function"].split(".")[-1], f"{named['function_share']:.0%} waits for {holder['text']}, {holder['function']}"
    if named and "loader's workers" not in named["remark"]:
        at = named["at"] if named["at"]["file"] == program + ".py" else named["called_from"] or named["at"]
        return at["function"].split(".")[-1], f"{max(named['with_backward_pass'], named['function_share']):.0%} {at['text']}, {at['function']}"
    if "line" in report["verdict"] and not named:
        return "", ""
    for device in report.get("devices", []):
        lines = device.get("host_lines") or {}
        waits_for = "loader's workers" in (lines.get("lines") or [{}])[0].get("remark", "")
        for line in (lines.get("workers") if waits_for else lines.get("lines")) or []:
            return line["at"]["function"].split(".")[-1], f"{line['share']:.0%} {line['at']['text']}, {line['at']['function']}"
    return "", ""


def edited_line(path, line, edits):
    """Where a line of a published file is once the edits before it are made."""
    before = [e for e in edits if e[0] == path and e[2] < line]
    return line + sum(len(text.splitlines()) - (last - first + 1) for _, first, last, text in before)


def open_line(report, said, edits):
    """The text of the line that a report's verdict names, and whether it or its caller is `said` (path:line) within two
    lines: a statement may take several. `edits` were made before the program ran."""
    named = report["verdict"].get("line")
    if not named:
        return "", not said
    path, _, number = said.rpartition(":")
    number = edited_line(path, int(number), edits) if said else 0
    places = [p for p in (named["at"], named["called_from"]) if p]
    right = any(pathlib.Path(p["file"]).name == pathlib.Path(path).name and abs(p["line"] - number) <= 2
                for p in places) if said else False
    at = named["at"]
    share = max(named["with_backward_pass"], named["function_share"])
    return f"{share:.0%} {at['file']}:{at['line']} {at['text']}, {at['function']}", right


def judge_other(report, cause, planted_ms, step_ms):
    """What removing another cause gained, beside what was promised for that."""
    fix, promised, ceiling, between = max((o for o in offers(report) if o[0] in CAUSES[cause][1]), key=lambda o: o[1],
                                          default=NOTHING)
    return {"cause": cause, "gained": round(statistics.median(planted_ms) / step_ms, 3), "fix": fix,
            "promised": round(promised, 3), "ceiling": ceiling, "range": between and [round(x, 3) for x in between]}


def judge_one(folder, row):
    """One row of the table; None where the program or the doctor failed, no `healthy` where that run was not done."""
    planted, healthy = (folder / f"{row['program']}.{v}.json" for v in ("planted", "healthy"))
    alone = {v: [r["step_ms"] for r in rs] for v, rs in row["alone"].items()}
    if not planted.exists() or not all(alone.values()) or not row.get("planted"):
        return None
    planted = json.loads(planted.read_text("utf-8"))
    cause = row["planted"]["cause"]
    verdicts, fixes = CAUSES[cause]
    gained = statistics.median(alone["planted"]) / statistics.median(alone["fixed"])
    of_cause = [o for o in offers(planted) if o[0] in fixes]
    _, promised, ceiling, between = max(of_cause, key=lambda o: o[1], default=NOTHING)
    judged = {"program": row["program"], "cause": cause, "verdict": planted["verdict"]["id"],
              "right": planted["verdict"]["id"] in verdicts, "gained": round(gained, 3), "promised": round(promised, 3),
              "ceiling": ceiling, "above": round(gained / promised, 3)}
    if cause != "none" and (HERE / f"{row['program']}.py").exists():
        function, judged["line"] = line_of(planted, row["program"])
        judged["line_right"] = function in planted_functions((HERE / f"{row['program']}.py").read_text("utf-8"))
    elif cause != "none" and row["program"] in open_programs():
        case = case_of(row["program"])
        edits = case.get("EDITS", [])
        judged["line"], judged["line_right"] = open_line(planted, case["LINE"], edits)
        if case.get("LINES"):
            judged["line_accepted"] = any(open_line(planted, said, edits)[1] for said in [case["LINE"], *case["LINES"]])
    itself = cause == "none" and row["program"] in open_programs()  # it has no twin: nothing was planted
    if itself:
        healthy = folder / f"{row['program']}.planted.json"
    if (row.get("healthy") or itself) and healthy.exists():
        judged["healthy"] = round(max((o[1] for o in offers(json.loads(healthy.read_text("utf-8")))), default=1.0), 3)
    if alone["planted"] and row["planted"].get("step_ms"):
        # Of the watched run against the run alone before it: far from 1, the machine was busy with something else.
        judged["pace"] = round(row["planted"]["step_ms"] / statistics.median(alone["planted"]), 3)
    if between:
        judged["range"] = [round(x, 3) for x in between]
    others = {c: r for c, r in row.get("others", {}).items() if r}
    if others:
        judged["others"] = [judge_other(planted, c, alone["planted"], r["step_ms"]) for c, r in others.items()]
    same = folder / f"{row['program']}.same_steps.json"
    timed = json.loads(same.read_text("utf-8")) if same.exists() else planted
    if row["planted"]["planted_ms"] and timed["steps"]["found"]:
        judged["off"] = round(1e-6 * timed["verdict"]["cause_ns"] / row["planted"]["planted_ms"] - 1, 3)
    return judged


def judge(given):
    folder = pathlib.Path(given.folder)
    read_rows = [json.loads(p.read_text("utf-8")) for p in sorted(folder.glob("*.row.json"))]
    judged = [(row, judge_one(folder, row)) for row in read_rows]
    rows = [j for _, j in judged if j]
    if not rows:
        raise SystemExit(f"{folder}: no program was read to its end; run `read` first")
    columns = ["program", "cause", "verdict", "right", "off", "gained", "promised", "ceiling", "range", "above", "healthy", "pace", "line_right"]
    for line in [dict(zip(columns, columns)), *rows]:
        print(" ".join(f"{str(line.get(c, '-')):<{34 if c == 'program' else 13}}" for c in columns).rstrip())
    for row, j in judged:
        if not j:
            print(f"not judged: {row['program']}: {row['errors'] or 'stopped before all of its runs were done'}")
    share = sum(r["right"] for r in rows) / len(rows)
    errors = [abs(1 / r["above"] - 1) for r in rows if r["cause"] != "none"]
    # An estimate without a range is held to what it says.
    above = max((r["above"] for r in rows if r["ceiling"] or "range" not in r), default=0)
    inside = [r["range"][0] <= r["gained"] <= r["range"][1] for r in rows if "range" in r]
    limits = [("cause first", share, share >= RIGHT),
              ("worst above its ceiling", above, above <= ABOVE_CEILING),
              ("estimates inside their range", sum(inside) / len(inside) if inside else 1.0, sum(inside) >= IN_RANGE * len(inside)),
              ("mean error of gains", statistics.fmean(errors or [0]), statistics.fmean(errors or [0]) <= MEAN_ERROR),
              ("worst cause ms", max([abs(r["off"]) for r in rows if "off" in r], default=0),
               all(abs(r.get("off", 0)) <= CAUSE_MS for r in rows)),
              ("most promised to a healthy one", max((r["healthy"] for r in rows if "healthy" in r), default=0),
               all(r.get("healthy", float("inf")) <= HEALTHY for r in rows))]
    lines = [r["line_right"] for r in rows if "line_right" in r]
    if lines:
        limits.append(("line of code right", sum(lines) / len(lines), sum(lines) >= RIGHT * len(lines)))
        accepted = [r.get("line_accepted", r["line_right"]) for r in rows if "line_right" in r]
        if sum(accepted) > sum(lines):
            limits.append(("or another that its author takes", sum(accepted) / len(lines), sum(accepted) >= RIGHT * len(lines)))
    for name, value, held in limits:
        print(f"{'ok  ' if held else 'MISS'} {name}: {value:.3f}")
    if given.jsonl:
        pathlib.Path(given.jsonl).write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return 0 if all(held for _, _, held in limits) and len(rows) == len(judged) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    reads = verbs.add_parser("read")
    reads.add_argument("folder")
    reads.add_argument("--doctor", default="saturate", help="the program saturate")
    reads.add_argument("--library", help="its capture library [found]")
    reads.add_argument("--only", nargs="+", choices=programs() + open_programs(), metavar="NAME")
    reads.add_argument("--open", metavar="CHECKOUTS", help="read the programs of ../open, whose repositories lie there")
    reads.add_argument("--gpus", type=int, default=1)
    reads.add_argument("--lanes", type=int, default=4, help="programs that start side by side on one GPU")
    reads.add_argument("--turns", type=int, default=2, help="runs of each variant without the doctor")
    reads.add_argument("--scale", type=float, default=1.0, help="share of each program's own number of steps")
    reads.add_argument("--seconds", type=float, help="begin no program after so long")
    reads.add_argument("--hold", type=int, default=120, help="end a program that has had the GPU for so many seconds")
    reads.add_argument("--keep", action="store_true", help="keep the captures too")
    judges = verbs.add_parser("judge")
    judges.add_argument("folder")
    judges.add_argument("--jsonl", help="write a line a program there")
    given = parser.parse_args()
    return {"read": read, "judge": judge}[given.verb](given)


if __name__ == "__main__":
    sys.exit(main())
