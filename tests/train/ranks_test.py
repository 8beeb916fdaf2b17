# SPDX-License-Identifier: Apache-2.0
"""Ranks that were told different things: usage: ranks_test.py PATH_OF_SATURATE [--mpirun COMMAND]

Started with the variables of torchrun, over Gloo, and, where COMMAND is given ("mpirun --oversubscribe"), through MPI.
"""
import argparse
import os
import shlex
import shutil
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

SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
    "model.decoder_layers": 1, "data.vocab_size": 200, "batch.target_tokens": 256, "validate.every_steps": 0,
    "validate.metric": "loss", "checkpoint.every_minutes": 0, "train.max_steps": 2, "train.device": "cpu",
}
LIMIT_S = 60  # the rendezvous alone would wait 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return min(probe.getsockname()[1], 65000)


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        subprocess.run([OPTIONS.program, "quickstart-data", "--out", f"{cls.base}/data", "--pairs", "300", "--held-out", "20"],
                       check=True, capture_output=True)
        cls.pair = [f"{cls.base}/data/train.en", f"{cls.base}/data/train.pt"]

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.out = tempfile.mkdtemp(dir=self.base) + "/out"

    def command(self, settings=None, train=None):
        line = [OPTIONS.program, "train", "--out", self.out, "--train", *(train or self.pair)]
        for key, value in (SMALL | (settings or {})).items():
            line += ["--set", f"{key}={value}"]
        return line

    def run_ranks(self, commands, variables=None):
        """One process a command; returns what each one's (exit code, standard error) was, and the seconds."""
        port, begin, processes = free_port(), time.monotonic(), []
        for rank, command in enumerate(commands):
            launcher = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(commands), "LOCAL_WORLD_SIZE": len(commands),
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = os.environ | {k: str(v) for k, v in launcher.items()} | (variables or {}).get(rank, {})
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                              text=True))
        results = []
        try:
            for p in processes:
                error = p.communicate(timeout=LIMIT_S)[1]
                results.append((p.returncode, error))
        finally:
            for p in processes:
                if p.poll() is None:
                    p.kill()
                    p.communicate()
        return results, time.monotonic() - begin

    def refused(self, results, *says):
        for code, error in results:
            self.assertIn(code, (1, 2), error)
            for text in says:
                self.assertIn(text, error)
        self.assertFalse(os.path.exists(f"{self.out}/metrics.jsonl"))
        self.assertFalse(os.path.exists(f"{self.out}/checkpoints/step-00000002"))

    def test_equal_ranks_train(self):
        # What may differ differs, and the preset's value is said by one of them.
        results, _ = self.run_ranks([self.command({"data.workers": 1}), self.command({"data.workers": 3, "model.kv_heads": 2})])
        for code, error in results:
            self.assertEqual(code, 0, error)

    def test_different_settings_are_named_with_their_ranks(self):
        changes = {"optimizer.lr": "0.002", "train.seed": "7", "optimizer.clip_norm": "0.5"}
        ranks = [self.command(), self.command(changes), self.command()]
        self.refused(self.run_ranks(ranks)[0], "train.seed is 1 on ranks 0, 2, 7 on rank 1",
                     "optimizer.lr is 0.0005 on ranks 0, 2, 0.002 on rank 1",
                     "optimizer.clip_norm is 1.0 on ranks 0, 2, 0.5 on rank 1")

    def test_different_model_text_and_environment(self):
        self.refused(self.run_ranks([self.command(), self.command({"model.dropout": 0.3})])[0], "model.dropout is 0.1")
        other = shutil.copytree(f"{self.base}/data", f"{self.out}-data")
        with open(f"{other}/train.en", "a", encoding="utf8") as file:
            file.write("one more\n")
        pair = [f"{other}/train.en", self.pair[1]]
        self.refused(self.run_ranks([self.command(), self.command(train=pair)])[0], "data.train", f"{other}/train.en")
        self.refused(self.run_ranks([self.command(), self.command()], {1: {"SATURATE_MATMUL": "reference"}})[0],
                     "SATURATE_MATMUL is unset on rank 0, reference on rank 1")

    def test_a_rank_that_fails_first_ends_all_at_once(self):
        for mistake in [{"model.heads": 3}, {"train.precision": "fp16"}]:
            for first in (True, False):
                ranks = [self.command(mistake), self.command()]
                results, seconds = self.run_ranks(ranks if first else ranks[::-1])
                self.refused(results, f"rank {0 if first else 1} failed")
                self.assertLess(seconds, 30)

    def test_bench_prints_once_and_compares(self):
        bench = [OPTIONS.program, "bench", "step", "--preset", "tiny", "--device", "cpu", "--batch", "64", "--length", "8",
                 "--repeats", "2", "--set", "data.vocab_size=200"]
        port, processes = free_port(), []
        for rank in range(2):
            environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(subprocess.Popen(bench, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        printed = [p.communicate(timeout=LIMIT_S)[0] for p in processes]
        self.assertEqual([p.returncode for p in processes], [0, 0])
        self.assertEqual([text.count("\n") for text in printed], [1, 0])
        self.refused(self.run_ranks([bench, [*bench, "--set", "optimizer.lr=1"]])[0], "optimizer.lr")

    @unittest.skipUnless(OPTIONS.mpirun, "no mpirun")
    def test_through_mpi(self):
        launch = shlex.split(OPTIONS.mpirun)
        both = [*launch, "-n", "1", *self.command(), ":", "-n", "1", *self.command({"optimizer.lr": "0.002"})]
        done = subprocess.run(both, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.refused([(1, done.stderr)], "optimizer.lr is 0.0005 on rank 0, 0.002 on rank 1")
        both = [*launch, "-n", "1", *self.command(), ":", "-n", "1", *self.command({"data.workers": "1"})]
        done = subprocess.run(both, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *REST])
