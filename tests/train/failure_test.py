# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed or stopped, and runs that begin again by themselves: usage: failure_test.py PATH_OF_SATURATE [--mpirun COMMAND]

Ranks are started with the variables of torchrun and of Slurm, over Gloo, and, where COMMAND is given, by mpirun.
"""
import argparse
import json
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--mpirun", default="")
OPTIONS, REST = parser.parse_known_args()
PROGRAM = os.path.abspath(OPTIONS.program)

STEPS = 90
SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
    "model.decoder_layers": 1, "data.vocab_size": 200, "batch.target_tokens": 256, "validate.every_steps": 0,
    "validate.metric": "loss", "checkpoint.every_minutes": 0, "checkpoint.every_steps": 10, "train.max_steps": STEPS,
    "train.device": "cpu", "schedule.warmup_steps": 10, "data.workers": 1,
}
LIMIT_S = 90


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return min(probe.getsockname()[1], 65000)


def torchrun(rank, size, port):
    return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port}


def slurm(rank, size, port):
    return {"SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": rank, "SLURM_NODEID": 0, "SLURM_TASKS_PER_NODE": size,
            "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": port, "SLURM_STEP_ID": 0}


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf8") as file:
        return [int(p) for p in file.read().split()]


class Failures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        subprocess.run([PROGRAM, "quickstart-data", "--out", f"{cls.base}/data", "--pairs", "300", "--held-out", "20"],
                       check=True, capture_output=True)
        cls.whole = {}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.out = tempfile.mkdtemp(dir=self.base) + "/out"
        self.processes = []

    def tearDown(self):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.communicate()

    def command(self, *more, out=None, **settings):
        line = [PROGRAM, "train", "--out", out or self.out, "--train", f"{self.base}/data/train.en", f"{self.base}/data/train.pt",
                *more]
        for key, value in (SMALL | settings).items():
            line += ["--set", f"{key}={value}"]
        return line

    def start(self, ranks, *more, variables=torchrun, out=None, **settings):
        port = free_port()
        self.processes = []
        for rank in range(ranks):
            launcher = variables(rank, ranks, port) if ranks > 1 else {}
            self.processes.append(subprocess.Popen(
                self.command(*more, out=out, **settings), stderr=subprocess.PIPE, text=True,
                env=os.environ | {k: str(v) for k, v in launcher.items()}))

    def wait_for_checkpoint(self):
        for _ in range(6000):
            if os.path.exists(f"{self.out}/checkpoints/latest"):
                return
            time.sleep(0.005)
        self.fail("no checkpoint came")

    def end(self):
        """(exit code, standard error) of each."""
        return [(p.returncode, said) for said, p in [(p.communicate(timeout=LIMIT_S)[1], p) for p in self.processes]]

    def state(self, out=None):
        with open(f"{out or self.out}/checkpoints/step-{STEPS:08d}/training/optimizer.safetensors", "rb") as file:
            return file.read()

    def uninterrupted(self, ranks):
        if ranks not in self.whole:
            out = f"{self.base}/whole{ranks}"
            self.start(ranks, out=out)
            for code, said in self.end():
                self.assertEqual(code, 0, said)
            self.whole[ranks] = self.state(out)
        return self.whole[ranks]

    def finished_alike(self, ranks):
        said = self.end()
        for code, text in said:
            self.assertEqual(code, 0, text)
        self.assertEqual(self.state(), self.uninterrupted(ranks))
        return said[0][1]

    def test_one_process_goes_on_after_each_kill(self):
        self.start(1, "--restart", "2")
        self.wait_for_checkpoint()
        killed = set()
        while len(killed) < 2:  # the second as it begins
            for child in children(self.processes[0].pid):
                if child not in killed:
                    os.kill(child, signal.SIGKILL)
                    killed.add(child)
            time.sleep(0.01)
        said = self.finished_alike(1)
        self.assertIn("was ended by SIGKILL; restart 2 of 2", said)
        self.assertRegex(said, r"resumed from .*/step-\d+ at step")

    def test_ranks_go_on_when_one_is_killed_or_stopped(self):
        for way, variables in [(signal.SIGKILL, torchrun), (signal.SIGSTOP, slurm)]:
            shutil.rmtree(self.out, ignore_errors=True)
            self.start(2, "--restart", "1", variables=variables)
            self.wait_for_checkpoint()
            victim, = children(self.processes[1].pid)
            os.kill(victim, way)
            said = self.finished_alike(2)
            self.assertRegex(said, r"rank 1 failed at step \d+ while ")
            self.assertIn("restart 1 of 1 from the last checkpoint", said)

    def test_the_last_failure_is_the_launchers(self):
        self.start(2, "--restart", "1", **{"train.max_steps": 1_000_000})
        self.wait_for_checkpoint()
        killed = set()
        end = time.monotonic() + LIMIT_S
        while len(killed) < 2 and time.monotonic() < end:
            for child in set(children(self.processes[1].pid)) - killed:
                time.sleep(1.5 * len(killed))  # the second once it trains again
                os.kill(child, signal.SIGKILL)
                killed.add(child)
            time.sleep(0.01)
        first, second = self.end()
        self.assertEqual(first[0], 1, first[1])
        self.assertEqual(second[0], -signal.SIGKILL, second[1])

    def test_what_was_asked_for_is_final(self):
        self.start(1, "--restart", "5")
        self.wait_for_checkpoint()
        self.processes[0].send_signal(signal.SIGTERM)
        code, said = self.end()[0]
        self.assertEqual(code, 130, said)
        self.assertNotIn("restart 1", said)
        shutil.rmtree(self.out)
        self.start(2, "--restart", "5", **{"model.heads": 3})
        for code, said in self.end():
            self.assertEqual(code, 2, said)
            self.assertNotIn("restart 1", said)

    def test_a_rank_that_dies_or_stops_ends_all(self):
        for way in (signal.SIGKILL, signal.SIGSTOP):
            for victim in (0, 2):
                shutil.rmtree(self.out, ignore_errors=True)
                self.start(3, **{"train.max_steps": 10**9})
                self.wait_for_checkpoint()
                self.processes[victim].send_signal(way)
                begin = time.monotonic()
                for rank, (code, said) in enumerate(self.end()):
                    self.assertEqual(code, -signal.SIGKILL if rank == victim else 1, said)
                    if rank != victim:
                        self.assertRegex(said, rf"rank {victim} failed at step \d+ while .*: ")
                self.assertLess(time.monotonic() - begin, 10)

    def test_a_run_may_change_its_layout_whenever_it_is_resumed(self):
        def losses(out):
            with open(f"{out}/metrics.jsonl", encoding="utf8") as file:
                rows = map(json.loads, file)
                return {r["step"]: r["loss"] for r in rows if r["kind"] == "valid"}
        keys = {"validate.every_steps": 10, "schedule.warmup_steps": 5, "optimizer.lr": 0.003, "batch.accumulate": 2}
        valid = ["--valid", f"{self.base}/data/valid.en", f"{self.base}/data/valid.pt"]
        for ranks, steps, layout in [(2, 10, "pp=2"), (2, 20, "tp=2"), (2, 30, "dp=2"), (1, 40, "dp=1"), (1, 0, "")]:
            out = self.out if steps else f"{self.out}-one"
            more = ["--resume"] if steps > 10 else []
            self.start(ranks, *valid, *more, *(["--parallel", layout] if steps else []), out=out,
                       **(keys | {"train.max_steps": steps or 40, "batch.accumulate": 1 if "dp=2" in layout else 2}))
            for code, said in self.end():
                self.assertEqual(code, 0, said)
        changed, one = losses(self.out), losses(f"{self.out}-one")
        self.assertEqual(sorted(changed), [10, 20, 30, 40])
        for step, loss in one.items():
            self.assertLess(abs(changed[step] / loss - 1), 1e-4)
        self.assertLess(one[40], one[10])

    def test_a_kill_while_all_ranks_save_leaves_a_whole_checkpoint(self):
        for milliseconds in (0, 3, 8, 15, 40):
            shutil.rmtree(self.out, ignore_errors=True)
            self.start(2, **{"checkpoint.every_steps": 1, "train.max_steps": 10**9})
            self.wait_for_checkpoint()
            time.sleep(milliseconds / 1000)
            self.processes[1].kill()
            self.end()
            self.start(2, "--resume", **{"train.max_steps": 0, "train.max_seconds": 0.01})
            for code, said in self.end():
                self.assertEqual(code, 0, said)
                self.assertNotIn("damaged", said)

    def test_a_rank_that_cannot_write_is_named_and_the_rest_stays(self):
        self.start(2, **{"train.max_steps": 10})
        self.end()
        kept = f"{self.out}/checkpoints/step-00000010/training/optimizer.safetensors"
        with open(kept, "rb") as file:
            before = file.read()
        self.start(2, "--resume", **{"train.max_steps": 12, "checkpoint.every_steps": 11})
        limit = 100 << 10  # of a file's size
        resource.prlimit(self.processes[1].pid, resource.RLIMIT_FSIZE, (limit, limit))
        for code, said in self.end():
            self.assertEqual(code, 1, said)
        self.assertRegex(said, r"rank 1 failed at step 12 .*step 12 is not saved: .*File too large")
        with open(kept, "rb") as file:
            self.assertEqual(file.read(), before)

    @unittest.skipUnless(OPTIONS.mpirun, "no mpirun")
    def test_through_mpirun(self):
        self.processes = [subprocess.Popen([*shlex.split(OPTIONS.mpirun), "-n", "2", *self.command("--restart", "1")],
                                           stderr=subprocess.PIPE, text=True)]
        self.wait_for_checkpoint()
        ranks = [p for p in children(self.processes[0].pid) if children(p)]
        self.assertEqual(len(ranks), 2)
        os.kill(children(ranks[1])[0], signal.SIGKILL)
        code, said = self.end()[0]
        self.assertEqual(code, 0, said)
        self.assertIn("restart 1 of 1", said)
        self.assertEqual(self.state(), self.uninterrupted(2))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *REST])
