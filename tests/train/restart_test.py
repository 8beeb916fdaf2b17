# SPDX-License-Identifier: Apache-2.0
"""Runs that are resumed, started again or already over: usage: restart_test.py PATH_OF_SATURATE"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv[1])
SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
    "model.decoder_layers": 1, "data.vocab_size": 200, "batch.target_tokens": 256, "validate.metric": "loss",
    "schedule.warmup_steps": 10, "checkpoint.every_minutes": 0, "train.device": "cpu",
}


def content(path):
    with open(path, encoding="utf8") as file:
        return file.read()


class Restarts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        subprocess.run([PROGRAM, "quickstart-data", "--out", f"{cls.base}/data", "--pairs", "300", "--held-out", "20"],
                       check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.root = tempfile.mkdtemp(dir=self.base)
        self.out = f"{self.root}/run"
        for name in ["train.en", "train.pt", "valid.en", "valid.pt"]:
            shutil.copy(f"{self.base}/data/{name}", self.root)

    def command(self, steps, *more, **settings):
        """Paths of the text relative to self.root, where it must run."""
        line = [PROGRAM, "train", "--train", "train.en", "train.pt", "--valid", "valid.en", "valid.pt", "--out", self.out,
                "--steps", str(steps), *more]
        for key, value in (SMALL | {"validate.every_steps": 0} | settings).items():
            line += ["--set", f"{key}={value}"]
        return line

    def run_it(self, line, expect=0, folder=None):
        done = subprocess.run(line, capture_output=True, text=True, timeout=100, cwd=folder or self.root)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stderr

    def resume(self, *more, expect=0):
        return self.run_it([PROGRAM, "train", "--resume", "--out", self.out, *more], expect, folder="/")

    def weights(self, step, out=None):
        with open(f"{out or self.out}/checkpoints/step-{step:08d}/training/optimizer.safetensors", "rb") as file:
            return file.read()

    def test_the_folder_is_all_that_a_resumed_run_needs(self):
        memory = ["--memory", "1200KiB"]  # the batch is fitted, and so it must be when resumed
        self.assertIn("micro-batches", self.run_it(self.command(9, *memory)))
        whole = self.weights(9)
        shutil.rmtree(self.out)
        self.run_it(self.command(4, "--quiet", *memory))
        said = self.resume("--steps", "9")
        self.assertIn("at step 4", said)
        self.assertIn("settings that changed since the run was last started: train.max_steps 9 (was 4)\n", said)
        self.assertEqual(self.weights(9), whole)
        settings = content(f"{self.out}/config.toml")
        for key in ["resume", "quiet"]:
            self.assertNotRegex(settings, rf"(?m)^{key} =")
        self.assertIn(f'train = ["{self.root}/train.en", "{self.root}/train.pt"]', settings)
        with open(f"{self.out}/metrics.jsonl", encoding="utf8") as file:
            self.assertNotIn("resume", json.loads(file.readline())["config"])
        # The whole command with --resume works as ever, and what it says goes before what was saved.
        said = self.run_it(self.command(10, "--resume", **{"optimizer.lr": 0.01}))
        self.assertIn("started: optimizer.lr 0.01 (was 0.0005), train.max_steps 10 (was 9)\n", said)

    def test_settings_saved_with_resume_and_quiet_are_read(self):
        self.run_it(self.command(2))
        path = f"{self.out}/config.toml"
        settings = f"resume = true\nquiet = true\n{content(path)}"
        with open(path, "w", encoding="utf8") as file:
            file.write(settings)
        self.assertIn("at step 2", self.resume("--steps", "3"))

    def test_text_that_moved_is_asked_for(self):
        self.run_it(self.command(2))
        os.rename(f"{self.root}/train.en", f"{self.root}/moved.en")
        said = self.resume("--steps", "4", expect=1)
        self.assertIn(f"{self.root}/train.en: the training text of this run is not there", said)
        self.assertIn("--train", said)
        said = self.resume("--steps", "4", "--train", f"{self.root}/moved.en", f"{self.root}/train.pt")
        self.assertRegex(said, r"changed .*data.train \[.*moved.en.*\(was \[.*train.en")

    def test_another_training_text_is_refused(self):
        self.run_it(self.command(3))
        with open(f"{self.root}/train.en", encoding="utf8") as file:
            lines = file.readlines()
        with open(f"{self.root}/train.en", "w", encoding="utf8") as file:
            file.writelines(lines[::-1])  # as many bytes, as many lines
        said = self.resume("--steps", "6", expect=2)
        self.assertIn("train.en: it was", said)
        self.assertIn("--init-from", said)
        with open(f"{self.root}/train.en", "w", encoding="utf8") as file:
            file.writelines(lines)
        self.assertIn("at step 3", self.resume("--steps", "6"))

    def test_scores_of_another_validation_text_begin_anew(self):
        self.run_it(self.command(4, **{"validate.every_steps": 2}))
        with open(f"{self.root}/other.en", "w", encoding="utf8") as en, \
                open(f"{self.root}/other.pt", "w", encoding="utf8") as pt:
            en.write("zyx wvu tsr qpo\n" * 5)  # a worse loss than before
            pt.write("98 76 54 32 10\n" * 5)
        said = self.resume("--steps", "6", "--valid", f"{self.root}/other.en", f"{self.root}/other.pt")
        self.assertIn("of step 4 was judged by another text", said)
        self.assertRegex(said, r"at step 6: loss .*\(best\)")
        self.assertNotIn("another text", self.resume("--steps", "8"))

    def test_what_cannot_be_resumed_is_said(self):
        self.assertIn("holds no run to resume", self.resume(expect=2))
        self.assertIn("nothing to resume; give --resume --out DIR", self.run_it([PROGRAM, "train", "--resume"], 2))

    def test_the_last_line_says_what_came_of_it(self):
        last = self.run_it(self.command(2)).splitlines()[-1]
        self.assertRegex(last, rf"^finished at step 2 after .*train.max_steps = 2; best loss \d\.\d{{4}} at step 2. "
                               rf"Model: {self.out}/model, report: {self.out}/report.html. "
                               rf"Next: saturate translate --model {self.out} < ")
        last = self.resume().splitlines()[-1]
        self.assertRegex(last, "^nothing to do: this run finished at step 2, train.max_steps = 2; raise that to go on")
        shutil.rmtree(self.out)
        patience = {"validate.every_steps": 1, "validate.patience": 1, "optimizer.lr": 0}
        last = self.run_it(self.command(50, **patience)).splitlines()[-1]
        self.assertRegex(last, r"^stopped early at step 2 after .*no better validation in 1 \(validate.patience = 1\)")
        steps = len(content(f"{self.out}/metrics.jsonl").splitlines())
        last = self.resume().splitlines()[-1]
        self.assertIn("nothing to do: this run stopped early at step 2", last)
        self.assertNotIn('"step":3', content(f"{self.out}/metrics.jsonl"))
        self.assertLess(len(content(f"{self.out}/metrics.jsonl").splitlines()), steps + 3)
        self.assertIn("step 3", self.resume("--steps", "3", "--set", "validate.patience=0"))

    def interrupted(self, when):
        run = subprocess.Popen(self.command(10**9, **{"train.log_every": 1}), stderr=subprocess.PIPE, text=True, cwd=self.root)
        for _ in range(2000):
            if when():
                break
            time.sleep(0.005)
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=60)[1]
        self.assertEqual(run.returncode, 130, said)
        return said

    def test_what_was_stopped_before_the_first_step_starts_again(self):
        os.mkdir(self.out)
        with open(f"{self.out}/notes.txt", "w", encoding="utf8") as file:
            file.write("mine\n")
        self.interrupted(lambda: os.path.exists(f"{self.out}/run.lock"))
        self.assertFalse(os.path.exists(f"{self.out}/checkpoints"))
        self.assertFalse(os.path.exists(f"{self.out}/model"))
        self.run_it(self.command(2))
        self.assertEqual(content(f"{self.out}/notes.txt"), "mine\n")
        self.assertIn("already holds a run", self.run_it(self.command(2), 2))

    def test_what_was_stopped_later_says_how_to_go_on(self):
        metrics = f"{self.out}/metrics.jsonl"
        said = self.interrupted(lambda: os.path.exists(metrics) and '"train"' in content(metrics))
        self.assertRegex(said, rf"stopped by SIGINT at step \d+ and saved; go on with: saturate train --resume --out {self.out}\n$")

    def test_what_a_killed_run_measured_is_kept(self):
        self.run_it(self.command(2))
        earlier = content(f"{self.out}/metrics.jsonl")
        shutil.rmtree(f"{self.out}/checkpoints")
        self.assertIn("whose model", self.run_it(self.command(2), 2))
        self.assertEqual(content(f"{self.out}/metrics.jsonl"), earlier)
        shutil.rmtree(f"{self.out}/model")
        self.assertIn(f"kept in {self.out}/metrics.jsonl.1", self.run_it(self.command(2)))
        self.assertEqual(content(f"{self.out}/metrics.jsonl.1"), earlier)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
