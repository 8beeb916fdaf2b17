# SPDX-License-Identifier: Apache-2.0
"""What every blind program shares: its command line, its clock, the one line it prints. Nothing of the doctor's.

A program lies in a file of its own. Its docstring says, in this order: the thread it reproduces; the complaint in the
users' words; Cause: what the time is spent on; Line: FILE:FUNCTION where it is spent; Remedy: what the `fixed`
variant does. Its variants are `planted`, `fixed` and `healthy` (nothing to win, of about the same kind of work).
"""
import argparse
import fcntl
import json
import os
import signal
import statistics
import sys
import time

held = []  # the lock on the GPU, once this process has it
shared = []  # the same while it prepares, beside others that do


def share_gpu():
    """Waits until no program measures on the GPU, then keeps such from beginning until this one takes it.

    Two programs that compute get the GPU by turns of about two milliseconds: what compiles, or makes its first steps,
    beside one that is measured makes that one slower."""
    path = os.environ.get("BLIND_GPU_LOCK")
    if not path or held or shared:
        return
    shared.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    fcntl.flock(shared[0], fcntl.LOCK_SH)
    os.register_at_fork(after_in_child=lambda: shared and os.close(shared.pop()))


def take_gpu():
    """Waits until no other program has the file that BLIND_GPU_LOCK names; without that variable, returns at once.

    The file stays locked until give_gpu() or until this process ends, however it ends; forked children do not hold it.
    Of the ranks of one program only the first on a machine takes it: the others wait for that one anyway. With
    BLIND_GPU_SECONDS this process ends by SIGALRM when it has held the GPU that long: one that stands still keeps the
    others waiting no longer, even where it waits outside Python."""
    path = os.environ.get("BLIND_GPU_LOCK")
    if not path or held or int(os.environ.get("LOCAL_RANK", 0)):
        return
    while shared:  # or each of two would wait for the other
        os.close(shared.pop())
    held.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    fcntl.flock(held[0], fcntl.LOCK_EX)
    signal.alarm(int(os.environ.get("BLIND_GPU_SECONDS", 0)))  # 0: no limit; not inherited by forked children
    os.register_at_fork(after_in_child=lambda: held and os.close(held.pop()))


def give_gpu():
    if held:
        signal.alarm(0)
    while held:
        os.close(held.pop())


class Loop:
    """Runs the steps of a program and prints what they took.

    planted_ms, if a program can tell, is a list to which it adds the milliseconds that the planted part of a step
    held up the GPU, measured by the program itself.

    Several programs may start side by side and still time themselves alone: with BLIND_GPU_LOCK in the environment,
    run() waits for an exclusive lock (flock) on the file it names, and keeps it until the steps are done."""

    def __init__(self, name, cause, steps=200, warm_up=20):
        parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
        parser.add_argument("variant", nargs="?", default="planted", choices=["planted", "fixed", "healthy"])
        parser.add_argument("--steps", type=int, default=steps)
        parser.add_argument("--small", action="store_true", help="sizes for a CPU, to see that the program runs at all")
        given = parser.parse_args()
        self.name, self.cause, self.variant, self.small = name, cause, given.variant, given.small
        self.steps, self.warm_up = (3, 1) if given.small else (given.steps, warm_up)
        self.planted_ms = []
        self.at, self.at_end = 0, []  # the step that runs; what to call when all are done

    @property
    def planted(self):
        return self.variant == "planted"

    def size(self, full, small):
        """`full` on a GPU, `small` to see on a CPU that the program runs."""
        return small if self.small else full

    def device(self):
        """The GPU; with --small whatever there is. Programs without PyTorch choose their own."""
        import torch

        if torch.cuda.is_available():
            return torch.device("cuda")
        if not self.small:
            raise SystemExit(f"{self.name}: no GPU; these programs measure one (--small only shows that they run)")
        return torch.device("cpu")

    def run(self, step, wait):
        """Calls step(i) for i = 0, 1, ...; `wait` ends when the device has done all of it. Prints one JSON line."""
        for i in range(self.warm_up + self.steps):
            self.before(i, wait)
            step(i)
        self.before(self.warm_up + self.steps, wait)

    def before(self, i, wait):
        """What run() does before step i, and after the last one: for programs whose library calls the steps."""
        self.at = i
        if i == 0:
            take_gpu()
        if i == self.warm_up:
            wait()
            self.planted_ms.clear()
            self.began = (time.perf_counter(), time.process_time())
        if i < self.warm_up + self.steps:
            return
        wait()
        seconds, cpu = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
        give_gpu()
        for call in self.at_end:
            call()
        print(json.dumps({
            "program": self.name, "cause": self.cause, "variant": self.variant, "small": self.small,
            "steps": self.steps, "step_ms": round(1e3 * seconds / self.steps, 4),
            "planted_ms": round(statistics.fmean(self.planted_ms), 4) if self.planted_ms else None,
            "host_cpu_ms": round(1e3 * cpu / self.steps, 4), "pid": os.getpid(),
        }), flush=True)


def wait_for(device):
    """A function that ends when PyTorch's work on `device` is done."""
    import torch

    return torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
