#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether `saturate doctor` is right about programs whose bottleneck is known.

`truth.py measure FOLDER` runs the programs beside this file on a GPU: each as it is and with each of its fixes, without
a profiler, then traced as it is, several times. `truth.py watch FOLDER --doctor PROGRAM` runs them, and the programs of
`saturate lab`, under `saturate doctor --`, each in a process of its own. `truth.py judge FOLDER --doctor PROGRAM` needs
no GPU: it lets the doctor read the captures and prints two tables, causes (is the planted one first, are its
milliseconds right?) and fixes (is the predicted gain the measured one?). Exit code 1 when a limit below is missed.
"""
import argparse
import importlib
import itertools
import json
import os
import pathlib
import subprocess
import sys

import pace

PROGRAMS = ["slow_loader", "item_each_step", "tiny_batch", "pageable_copies", "gpu_bound", "allocation", "host_python",
            "growing_step", "small_transfers", "single_precision"]
CAUSE_MS = 0.05      # of the planted milliseconds
RIGHT_RUNS = 0.95    # of all runs name the planted cause first
HEALTHY_GAIN = 1.03  # promised at most where nothing is planted
MEAN_ERROR = 0.10    # of predicted gains
ABOVE_CEILING = 1.03


def kind_of(name):
    module = importlib.import_module(name)
    plant = importlib.import_module("plant")
    return next(c for c in vars(module).values()
                if isinstance(c, type) and issubclass(c, plant.Program) and c.name == name)


def measure(given):
    """Run every program in a process of its own, first as it is and repaired, then traced; write results and traces.

    What one run leaves behind (CUPTI's hooks, memory) reaches no other program, and a program's two kinds of runs lie
    close together: its bottleneck's pace changes with the machine."""
    folder = pathlib.Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "measured.jsonl").write_text("")
    failed = False
    for name in given.only or PROGRAMS:
        print(name, flush=True)
        failed = not in_child(lambda: measure_one(given, kind_of(name)), name) or failed
    return 1 if failed else 0


def measure_one(given, kind):
    plant, torch = importlib.import_module("plant"), importlib.import_module("torch")
    folder = pathlib.Path(given.folder)

    def keep(result, **more):
        result.update(gpu=torch.cuda.get_device_name(), torch=torch.__version__, cause=kind.cause,
                      verdicts=kind.verdicts, drift=kind.drift, **more)
        with open(folder / "measured.jsonl", "a", encoding="utf-8") as out:
            print(json.dumps(result), file=out)

    for _ in range(given.runs):  # in turns: the machine's pace changes
        for fix in [None, *kind.fixes]:
            program = kind(fix)
            program.stretch(program.warm_up)
            for result in pace.when_calm(lambda: plant.plain(program), 1):
                keep(result, batches=program.batches)
            program.close()
            del program
            torch.cuda.empty_cache()
    for fix in [None] + [kind.healthy_with] * (kind.healthy_with is not None):
        program = kind(fix)
        program.stretch(program.warm_up)
        names = (f"{kind.name}.{fix or 'planted'}.{run}.json.gz" for run in itertools.count())

        def traced():
            trace = next(names)
            return dict(plant.traced(program, str(folder / trace)), trace=trace)
        for result in pace.when_calm(traced, given.runs, tries=2):
            keep(result)
        program.close()


def in_child(work, name):
    """Fork; the child does the work and ends as programs end. Returns whether it could."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    failed = os.waitpid(child, 0)[1] != 0
    if failed:
        print(f"{name}: failed", file=sys.stderr)
    return not failed


def perform_one(given, kind, fix):
    """Run a program for a while and print its result with its process's number."""
    plant, torch = importlib.import_module("plant"), importlib.import_module("torch")
    program = kind(fix)
    step_ms = program.stretch(3)["step_ms"]
    if kind.drift:
        program.steps *= 2
    else:
        program.steps = max(program.steps, int(1e3 * given.seconds / step_ms))
    result = dict(plant.plain(program), traced=True, pid=os.getpid(), gpu=torch.cuda.get_device_name(),
                  torch=torch.__version__, cause=kind.cause, verdicts=kind.verdicts, drift=kind.drift)
    program.close()
    print(json.dumps(result), flush=True)


def lab_programs(doctor):
    """Names of the programs of `saturate lab`, each with the verdict it should get."""
    told = subprocess.run([doctor, "lab", "list"], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in told.splitlines() if line[0] != " "]
    return dict(zip(names, (line.rsplit(" ", 1)[1] for line in told.splitlines() if line[0] == " ")))


def perform(given):
    """What `watch` lets the doctor watch: every program in a process of its own, a line of JSON each."""
    for kind in [kind_of(name) for name in PROGRAMS if not given.only or name in given.only]:
        for fix in [None] + [kind.healthy_with] * (kind.healthy_with is not None):
            for _ in range(given.runs):
                in_child(lambda: perform_one(given, kind, fix), f"{kind.name}, fix {fix}")
    for name, verdict in lab_programs(given.doctor).items():
        for _ in range(given.runs if not given.only or "lab " + name in given.only else 0):
            command = [given.doctor, "lab", "run", name, "--json", "--steps"]
            step_ms = json.loads(subprocess.run([*command, "20"], capture_output=True, check=True).stdout)["step_ms"]
            steps = 100 if name == "growing_step" else int(1e3 * given.seconds / step_ms)
            run = subprocess.Popen([*command, str(steps)], stdout=subprocess.PIPE)
            result = json.loads(run.communicate()[0])
            print(json.dumps(dict(result, program="lab " + name, fix=None, traced=True, pid=run.pid,
                                  cause=None if verdict == "gpu_bound" else verdict, verdicts=[verdict],
                                  drift=name == "growing_step")), flush=True)
    return 0


def watch(given):
    """Run `perform` under the doctor and give every program's capture a folder of its own."""
    known = [*PROGRAMS, *("lab " + name for name in lab_programs(given.doctor))]
    if unknown := set(given.only or ()) - set(known):
        raise SystemExit(f"--only: no program {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    folder = pathlib.Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    captures = folder / "captures"
    only = ["--only", *given.only] if given.only else []
    run = subprocess.run([given.doctor, "doctor", "--keep", captures, "--format", "json", "-o", folder / "all.json", "--",
                          sys.executable, __file__, "perform", folder, "--doctor", given.doctor, "--runs", str(given.runs),
                          "--seconds", str(given.seconds), *only], stdout=subprocess.PIPE, text=True, check=True)
    results = [json.loads(line) for line in run.stdout.splitlines()]
    for result in results:
        own = folder / str(result["pid"])
        own.mkdir()
        os.rename(captures / f"{result['pid']}.sat", own / "program.sat")
        os.symlink("../captures/host.sat", own / "host.sat")
        result["trace"] = own.name
    (folder / "measured.jsonl").write_text("".join(json.dumps(r) + "\n" for r in results))
    return 0


def diagnose(doctor, path, step_ms=None):
    command = [doctor, "doctor", str(path), "--format", "json"]
    if step_ms:
        command += ["--step-ms", str(step_ms)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2 and step_ms:  # the machine was much slower than when the step was timed
        print(f"{path}: {done.stderr.strip()}", file=sys.stderr)
        return dict(diagnose(doctor, path), step_ms_refused=True)
    if done.returncode != 0:
        raise SystemExit(f"{path}: doctor failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def judge_causes(traced, diagnoses):
    """One row a trace: is the planted cause first, and how many milliseconds is it said to cost?"""
    rows = []
    for result, told in zip(traced, diagnoses):
        verdict = told["verdict"]
        gain = max([f["speedup_at_most"] for f in told["fixes"]], default=1.0)
        row = {"kind": "cause", "program": result["program"], "planted": result["cause"], "verdict": verdict["id"],
               "fix": result["fix"], "step_ms": result["step_ms"], "planted_ms": result["planted_ms"],
               "promised": round(gain, 3)}
        # Without marks the doctor may take a part of a step, or several, for one.
        found = told["steps"]["mean_ns"] if result.get("pid") and told["steps"]["found"] else 1e6 * result["step_ms"]
        if told.get("step_ms_refused"):
            row["step_ms_refused"] = True
        row["told_ms"] = round(verdict["cause_ns"] / found * result["step_ms"], 4)
        row["right"] = verdict["id"] in result["verdicts"]
        if result["cause"] is None or result["fix"]:
            row.update(planted=None, right=verdict["id"] == "gpu_bound" and gain <= HEALTHY_GAIN)
        elif result["drift"]:  # what grows is the verdict, whatever it is that grows
            row["right"] = verdict["id"] == "growth_bound" and told["steps"]["drift"] > 1.1
        if result["planted_ms"] > 0:
            row["off"] = round(row["told_ms"] / result["planted_ms"] - 1, 4)
        rows.append(row)
    return rows


def judge_fixes(plain, traced, diagnoses):
    """One row a (program, fix): the gain predicted from the traces as it was, and the gain measured with the fix."""
    rows = []
    for program, fix in sorted({(r["program"], r["fix"]) for r in plain if r["fix"]}):
        def steps(fixed):
            return [r["step_ms"] / r["batches"] for r in plain if r["program"] == program and r["fix"] == fixed]
        measured = median(steps(None)) / median(steps(fix))
        predicted, ceiling = [], True
        for result, told in zip(traced, diagnoses):
            if result["program"] == program and result["fix"] is None:
                found = [f for f in told["fixes"] + told["not_the_cause"] if f["id"] == fix]
                predicted += [f["speedup_at_most"] for f in found]
                ceiling = ceiling and all(f["is_ceiling"] for f in found)
        row = {"kind": "fix", "program": program, "fix": fix, "step_ms": round(median(steps(None)), 4),
               "fixed_ms": round(median(steps(fix)), 4), "measured": round(measured, 3)}
        if predicted:
            row["predicted"] = round(median(predicted), 3)
            row["error"] = round(row["predicted"] / measured - 1, 4)
            row["ceiling"] = ceiling
        rows.append(row)
    return rows


def table(rows, columns):
    text = [[str(r.get(c, "-")) for c in columns] for r in rows]
    widths = [max(len(x) for x in [c, *(t[i] for t in text)]) for i, c in enumerate(columns)]
    for line in [columns, *text]:
        print("  ".join(x.ljust(w) for x, w in zip(line, widths)).rstrip())
    print()


def judge(given):
    folder = pathlib.Path(given.folder)
    results = [json.loads(line) for line in (folder / "measured.jsonl").read_text().splitlines()]
    plain = [r for r in results if not r["traced"]]
    traced = [r for r in results if r["traced"]]

    def untraced(result):
        same = [r["step_ms"] for r in plain if (r["program"], r["fix"]) == (result["program"], result["fix"])]
        return median(same) if same else None  # a watched program's slowdown is in the capture

    diagnoses = [diagnose(given.doctor, folder / r["trace"], untraced(r)) for r in traced]
    causes, fixes = judge_causes(traced, diagnoses), judge_fixes(plain, traced, diagnoses)
    table(causes, ["program", "fix", "planted", "verdict", "right", "step_ms", "planted_ms", "told_ms", "off",
                   "promised"])
    table(fixes, ["program", "fix", "step_ms", "fixed_ms", "measured", "predicted", "error", "ceiling"])
    right = sum(r["right"] for r in causes) / len(causes)
    off = [abs(r["off"]) for r in causes if "off" in r]
    errors = [abs(r["error"]) for r in fixes if "error" in r] or [0]
    above = max([r["measured"] / r["predicted"] for r in fixes if r.get("ceiling")], default=1)
    limits = [("planted cause first", right, right >= RIGHT_RUNS), ("worst cause ms", max(off), max(off) <= CAUSE_MS),
              ("fixes with a number", len(errors) / max(1, len(fixes)), len(errors) >= len(fixes)),
              ("mean error of gains", sum(errors) / len(errors), sum(errors) / len(errors) <= MEAN_ERROR),
              ("measured over ceiling", above, above <= ABOVE_CEILING)]
    for r in fixes:
        if r.get("ceiling") is False:
            print(f"     {r['program']}, {r['fix']}: an estimate, measured over it {r['measured'] / r['predicted']:.3f}")
    for name, value, held in limits:
        print(f"{'ok  ' if held else 'MISS'} {name}: {value:.3f}")
    if given.jsonl:
        with open(given.jsonl, "w", encoding="utf-8") as out:
            for row in causes + fixes:
                out.write(json.dumps(dict(row, gpu=results[0].get("gpu"), torch=results[0].get("torch"))) + "\n")
    return 0 if all(held for _, _, held in limits) else 1


def main():
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("measure", help="on a GPU: run the programs, write results and traces")
    run.add_argument("folder")
    run.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="PROGRAM")
    run.add_argument("--runs", type=int, default=3)
    for verb, says in (("watch", "on a GPU: run the programs under the doctor"), ("perform", "what watch watches")):
        seen = verbs.add_parser(verb, help=says)
        seen.add_argument("folder")
        seen.add_argument("--only", nargs="+", metavar="PROGRAM", help="'lab NAME': one of the lab's")
        seen.add_argument("--runs", type=int, default=3)
        seen.add_argument("--seconds", type=float, default=2, help="of measured steps a run")
        seen.add_argument("--doctor", default="saturate", help="the program saturate")
    look = verbs.add_parser("judge", help="anywhere: let the doctor read the traces and compare")
    look.add_argument("folder")
    look.add_argument("--doctor", default="saturate", help="the program saturate")
    look.add_argument("--jsonl", help="write a line a row there")
    given = parser.parse_args()
    return {"measure": measure, "watch": watch, "perform": perform, "judge": judge}[given.verb](given)


if __name__ == "__main__":
    sys.exit(main())
