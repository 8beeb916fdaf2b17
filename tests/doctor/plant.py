# SPDX-License-Identifier: Apache-2.0
"""Training programs with one planted bottleneck each, which measure by themselves what it costs.

A program is a class with a `step` that runs one training step, and marks the planted part of it with
`with self.planted():`. Two events on the stream bound that part as the device sees it: the first is reached when the
queued work is done, the second when the host comes to it. What lies between is time the bottleneck costs, in
milliseconds of the device's clock, without the part that runs beside queued work and costs nothing.

Run one with `python slow_loader.py [--fix loader] [--trace out.json.gz]`; it prints one JSON line a stretch of steps.
"""
import argparse
import contextlib
import json
import time

import torch


class Program:
    """A training loop with a planted bottleneck.

    Attributes
    ----------
    name : str
        Of the file and in the results.
    verdicts : tuple of str
        Ids of `saturate doctor --format json` that name the planted cause; the first is the usual one.
    cause : str or None
        Id of the fix that cures it; None when nothing is planted.
    fixes : dict of str to str
        Ids of fixes that `fix=` applies for a measurement, with what is changed in the program.
    healthy_with : str or None
        Id of a fix with which nothing is left to win.
    warm_up, steps : int
        Steps before measuring and steps measured.
    """

    name = ""
    verdicts = ()
    cause = None
    fixes = {}
    healthy_with = None
    warm_up, steps = 10, 30
    drift = False  # steps grow longer and longer
    batches = 1  # samples a step grow by this factor: the batch fix is measured in samples a second

    def __init__(self, fix=None):
        if fix is not None and fix not in self.fixes:
            raise SystemExit(f"{self.name}: no fix '{fix}'; it has: {', '.join(self.fixes) or 'none'}")
        self.fix = fix
        self.marks = []
        self.device = torch.device("cuda")
        torch.manual_seed(0)
        self.prepare()

    def prepare(self):
        """Build model and data."""

    def step(self):
        """Run one training step."""
        raise NotImplementedError

    def begin(self):
        """Called before a stretch of steps."""

    def close(self):
        """End worker processes."""

    @contextlib.contextmanager
    def planted(self):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        yield
        end.record()
        self.marks.append((begin, end))

    def planted_ms(self, step_ms):
        """Milliseconds a step that the planted part cost in the stretch that took `step_ms` a step.

        Without the first step, whose planted part lies before the first kernel of the stretch: nothing shows it in a
        trace."""
        later = self.marks[len(self.marks) // self.counted:]
        return sum(begin.elapsed_time(end) for begin, end in later) / (self.counted - 1)

    def stretch(self, steps):
        """Run `steps` steps and return what they took.

        Returns
        -------
        dict
            `step_ms` and `steps`.
        """
        torch.cuda.synchronize()
        self.marks.clear()
        self.counted = steps
        self.begin()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        step_ms = 1e3 * (time.perf_counter() - begin) / steps
        return {"step_ms": round(step_ms, 4), "steps": steps}

    def measure(self):
        """Run the measured steps.

        Returns
        -------
        dict
            As `stretch`, and `planted_ms`.
        """
        result = self.stretch(self.steps)
        planted = self.planted_ms(result["step_ms"]) if self.cause and self.fix is None else 0.0
        return dict(result, planted_ms=round(planted, 4))


def plain(program):
    """Measure a program without a profiler."""
    return dict(program.measure(), program=program.name, fix=program.fix, traced=False)


def traced(program, path):
    """Measure a program under torch.profiler and write the trace to `path`."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        result = program.measure()
    profiler.export_chrome_trace(path)
    return dict(result, program=program.name, fix=program.fix, traced=True)


def main(kind):
    """Run the program that a file holds."""
    arguments = argparse.ArgumentParser(description=kind.__doc__)
    arguments.add_argument("--fix", choices=sorted(kind.fixes), help="apply this remedy")
    arguments.add_argument("--fixed", action="store_true", help="apply the remedy of the planted cause")
    arguments.add_argument("--steps", type=int, default=kind.steps)
    arguments.add_argument("--trace", metavar="FILE", help="also export a trace of as many steps (.json or .json.gz)")
    given = arguments.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU: these programs measure one")
    kind.steps = given.steps
    program = kind(given.fix or (kind.cause if given.fixed else None))
    program.stretch(program.warm_up)
    print(json.dumps(plain(program)), flush=True)
    if given.trace:
        print(json.dumps(traced(program, given.trace)), flush=True)
    program.close()
