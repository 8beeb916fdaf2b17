#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one program of a public repository as published, or with the remedy that an engineer would apply first.

    open_case.py NAME planted|repaired|CAUSE|FIX --repositories DIR [--steps N]

NAME is a file beside this one; README.md says what it holds. CAUSE is one of its OTHER_REPAIRS, FIX of its REMEDIES. DIR has the checkouts, one
folder owner+name each. The checkout is copied, the case's edits are applied to the copy, and its own script runs there
with its own arguments. After N steps the process ends and prints one line of JSON. A step is one of the optimizer; a script without one says
step_done() where the case inserted it. The GPU is waited for at both ends of the measured steps and nowhere between.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import runpy
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
DEFAULTS = {
    "FOLDER": "",  # of the repository, where the script is started
    "LINES": [],  # at most three further places that answer as well as LINE which line it is
    "EDITS": [],
    "REPAIR": [],
    "OTHER_REPAIRS": {},  # by cause: edits that remove another cause instead, written as blindly as REPAIR
    "REMEDIES": {},  # by the doctor's names of fixes: what applies one that it offered, written after its first reading
    "STEPS": 300,  # measured
    "WARM_UP": 20,  # steps before those, with the GPU held
    "BEFORE": 1,  # steps before those, in which programs side by side may compile
    "EVERY": 1,  # optimizer steps to one step of the program: one for each of its optimizers
}


def load_case(name):
    path = HERE / f"{name}.py"
    if not path.is_file() or name == pathlib.Path(__file__).stem:
        raise SystemExit(f"{name}: no such case in {HERE}")
    return argparse.Namespace(**{**DEFAULTS, **{k: v for k, v in runpy.run_path(str(path)).items() if k.isupper()}})


def apply_edits(root, edits):
    """Replaces lines first..last, both counted in the file as published, by a text; last = first - 1 inserts before."""
    for file in {edit[0] for edit in edits}:
        path = root / file
        lines = path.read_text("utf-8").splitlines(keepends=True)
        untouched = len(lines) + 1
        for _, first, last, text in sorted((e for e in edits if e[0] == file), key=lambda e: e[1:3], reverse=True):
            if not 1 <= first <= last + 1 <= untouched:
                raise SystemExit(f"{file}:{first}-{last}: outside the file, or two edits of one line")
            lines[first - 1:last] = [text if not text or text.endswith("\n") else text + "\n"]
            untouched = first
        path.write_text("".join(lines), "utf-8")


def wait_for_gpu(values):
    """Waits with whatever the program itself has imported; `values` are what its last step computed."""
    torch, cupy, jax = (sys.modules.get(name) for name in ("torch", "cupy", "jax"))
    if torch and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if cupy:
        cupy.cuda.Device().synchronize()
    if jax and values:
        jax.block_until_ready(values)


class Clock:
    def __init__(self, given, case, take_gpu):
        self.given, self.case, self.take_gpu = given, case, take_gpu
        self.first = case.BEFORE + case.WARM_UP  # steps done when the window opens
        self.calls = 0

    def step_done(self, *values):
        self.calls += 1
        step, rest = divmod(self.calls, self.case.EVERY)
        if rest:
            return
        if step == self.case.BEFORE:
            wait_for_gpu(values)
            self.take_gpu()
        if step == self.first:
            wait_for_gpu(values)
            self.began = time.perf_counter()
        if step == self.first + self.given.steps:
            wait_for_gpu(values)
            seconds = time.perf_counter() - self.began
            print(json.dumps({"program": self.given.name, "variant": self.given.variant, "steps": self.given.steps,
                              "step_ms": round(1e3 * seconds / self.given.steps, 4), "cause": self.case.CAUSE,
                              "planted_ms": None, "pid": os.getpid()}), flush=True)
            raise SystemExit(0)


def count_steps(clock, edits):
    """Calls clock.step_done after every step: from where an edit says so, else from PyTorch's optimizers."""
    if any("step_done(" in text for *_, text in edits):
        import builtins

        builtins.step_done = clock.step_done
    else:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: clock.step_done())


def gpu_lock():
    """The blind programs' module, for share_gpu and take_gpu: both wait for the file that BLIND_GPU_LOCK names."""
    spec = importlib.util.spec_from_file_location("blind", HERE.parent / "blind" / "blind.py")
    blind = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(blind)
    return blind


def import_ahead(script):
    """The frameworks that a script imports, which takes seconds and not the GPU."""
    text = script.read_text("utf-8")
    for name in ("torch", "torchvision", "transformers", "jax", "cupy"):
        if re.search(rf"^\s*(import|from) {name}\b", text, re.MULTILINE):
            importlib.import_module(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("variant")
    parser.add_argument("--repositories", required=True, metavar="DIR", type=pathlib.Path)
    parser.add_argument("--steps", type=int, help="steps to measure [the case's own number]")
    given = parser.parse_args()
    case = load_case(given.name)
    given.steps = given.steps or case.STEPS
    variants = {"planted": [], "repaired": case.REPAIR, **case.OTHER_REPAIRS, **case.REMEDIES}
    if given.variant not in variants:
        raise SystemExit(f"{given.name} {given.variant}: no such variant; there are {', '.join(variants)}")
    edits = case.EDITS + variants[given.variant]

    folder = case.REPOSITORY.replace("/", "+")
    with tempfile.TemporaryDirectory(prefix="open-case-", ignore_cleanup_errors=True) as scratch:
        root = pathlib.Path(scratch) / folder
        shutil.copytree(given.repositories / folder, root, ignore_dangling_symlinks=True)
        apply_edits(root, edits)
        os.environ.update(WANDB_MODE="disabled", HF_HUB_OFFLINE="1", MPLBACKEND="Agg")
        os.chdir(root / case.FOLDER)
        blind = gpu_lock()
        import_ahead(root / case.FOLDER / case.COMMAND[0])
        blind.share_gpu()
        count_steps(Clock(given, case, blind.take_gpu), edits)
        sys.argv = list(case.COMMAND)
        sys.path[0] = str(pathlib.Path(case.COMMAND[0]).resolve().parent)
        if pathlib.Path(case.COMMAND[0]).parent != pathlib.Path():
            sys.path.insert(1, os.getcwd())  # the repository's own package, which its users install
        try:
            runpy.run_path(case.COMMAND[0], run_name="__main__")
        finally:
            os.chdir("/")  # the copy goes away
    raise SystemExit(f"{given.name}: the script ended before {given.steps} steps were measured")


if __name__ == "__main__":
    main()
