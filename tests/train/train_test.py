# SPDX-License-Identifier: Apache-2.0
"""Whole training runs of a very small model.

usage: train_test.py PATH_OF_SATURATE [--device cuda] [--ranks N --launch COMMAND] [unittest's options]

COMMAND starts N processes; {ranks} in it is N: "mpirun -n {ranks}" or, on a machine with N GPUs,
"torchrun --standalone --nproc-per-node {ranks} --no-python".
"""
import argparse
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--device", default="cpu")
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--launch", default="")
OPTIONS, REST = parser.parse_known_args()

SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
    "model.decoder_layers": 1, "data.vocab_size": 200, "batch.target_tokens": 256, "optimizer.lr": 3e-3,
    "schedule.warmup_steps": 10, "validate.every_steps": 0, "validate.metric": "loss", "train.log_every": 1,
    "checkpoint.every_minutes": 0, "train.device": OPTIONS.device,
}


def tensors(path):
    """Name -> list of floats of a safetensors file with F32 tensors."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: struct.unpack(f"<{(t['data_offsets'][1] - t['data_offsets'][0]) // 4}f",
                                data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items()}


def content(path):
    with open(path, "rb") as file:
        return file.read()


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        subprocess.run([OPTIONS.program, "quickstart-data", "--out", f"{cls.root}/data", "--pairs", "600"],
                       check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def command(self, out, steps, **changes):
        data = f"{self.root}/data"
        settings = SMALL | {"train.max_steps": steps, "schedule.total_steps": 1000} | changes
        line = [OPTIONS.program, "train", "--train", f"{data}/train.en", f"{data}/train.pt", "--valid",
                f"{data}/valid.en", f"{data}/valid.pt", "--out", f"{self.root}/{out}"]
        for key, value in settings.items():
            if key == "resume":
                line.append("--resume")
            else:
                line += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return line

    def train(self, out, steps, launcher=(), expect=0, **changes):
        # Open MPI unloads its plug-ins before LeakSanitizer, which then cannot name them, looks for leaks.
        environment = os.environ | ({"ASAN_OPTIONS": "detect_leaks=0"} if launcher else {})
        done = subprocess.run([*launcher, *self.command(out, steps, **changes)], capture_output=True, text=True,
                              timeout=250, env=environment)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done

    def weights(self, out, step):
        return f"{self.root}/{out}/checkpoints/step-{step:08d}/training/optimizer.safetensors"

    def losses(self, out):
        with open(f"{self.root}/{out}/metrics.jsonl", encoding="utf8") as file:
            rows = [json.loads(line) for line in file]
        return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}

    def test_learns(self):
        self.train("learns", 120)
        losses = self.losses("learns")
        self.assertLess(losses[120], 0.7 * losses[1])
        # Cores that others use as well have no rate to be a share of.
        with open(f"{self.root}/learns/metrics.jsonl", encoding="utf8") as file:
            rows = [row for row in map(json.loads, file) if row["kind"] == "train"]
        self.assertEqual({row["flop_utilisation"] is None for row in rows}, {OPTIONS.device == "cpu"})

    def test_resume_continues_bit_for_bit_even_twice(self):
        for extra in [{}, {"optimizer.ema_decay": 0.9, "batch.accumulate": 2, "model.dropout": 0.2}]:
            name = "accumulated" if extra else "plain"
            self.train(f"{name}-whole", 30, **extra)
            self.train(f"{name}-parts", 10, **extra)
            self.train(f"{name}-parts", 20, resume=True, **extra)
            self.train(f"{name}-parts", 30, resume=True, **extra)
            self.assertEqual(content(self.weights(f"{name}-whole", 30)), content(self.weights(f"{name}-parts", 30)))
            self.assertEqual(self.losses(f"{name}-whole"), self.losses(f"{name}-parts"))

    def test_the_row_that_starts_the_decoder_stays_zero(self):
        everything = {"optimizer.ema_decay": 0.9, "batch.accumulate": 2, "model.dropout": 0.2, "optimizer.weight_decay": 0.1}
        for extra in [everything, {"data.shared_vocabulary": False}, {"model.tie_embeddings": False}]:
            name = "zero-" + "-".join(extra)
            self.train(name, 12, **extra)
            with open(f"{self.root}/{name}/model/config.json", encoding="utf8") as file:
                config = json.load(file)
            row = slice(config["pad_token_id"] * 32, (config["pad_token_id"] + 1) * 32)
            arrays = {key: values for key, values in tensors(self.weights(name, 12)).items()
                      if key.endswith(("/shared.weight", "/decoder.embed.weight"))}
            self.assertGreaterEqual(len(arrays), 3)  # masters and both moments; the average where there is one
            for key, values in arrays.items():
                self.assertEqual(set(values[row]), {0.0}, key)
                self.assertTrue(any(values[:32]), key)

    def test_graph_and_prefetch_change_nothing(self):
        self.train("with", 12)
        self.train("without", 12, **{"train.prefetch": False, "train.graph": False})
        self.assertEqual(content(self.weights("with", 12)), content(self.weights("without", 12)))

    def test_signal_saves_and_kill_loses_only_what_came_after_the_checkpoint(self):
        run = subprocess.Popen(self.command("signal", 100000), stderr=subprocess.PIPE, text=True)
        self.await_steps("signal", 5)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(timeout=60), 130)
        run.stderr.close()
        saved = sorted(os.listdir(f"{self.root}/signal/checkpoints"))
        self.assertTrue(any(name.startswith("step-") for name in saved), saved)

        run = subprocess.Popen(self.command("killed", 100000, **{"checkpoint.every_steps": 3}),
                               stderr=subprocess.PIPE, text=True)
        self.await_steps("killed", 10)
        run.kill()
        run.wait(timeout=60)
        run.stderr.close()
        last = max(int(name[5:]) for name in os.listdir(f"{self.root}/killed/checkpoints") if name.startswith("step-"))
        done = self.train("killed", last + 3, resume=True)
        self.assertIn(f"at step {last}", done.stderr)
        self.assertEqual(sorted(self.losses("killed")), list(range(1, last + 4)))

    def await_steps(self, out, steps):
        for _ in range(600):
            try:
                if len(self.losses(out)) >= steps:
                    return
            except (FileNotFoundError, json.JSONDecodeError):
                pass
            time.sleep(0.1)
        self.fail("no progress within 60 s")

    def launcher(self):
        if not OPTIONS.launch:
            self.skipTest("no --launch: this build or machine has one rank")
        return shlex.split(OPTIONS.launch.format(ranks=OPTIONS.ranks))

    def test_ranks_equal_one_with_as_many_micro_batches(self):
        # A gradient that is zero but for rounding (a key's bias) must not decide a step: hence eps.
        # Masks are those of the micro-batch, whichever rank has it.
        plain = {"model.dropout": 0.2, "model.attention_dropout": 0.2, "model.activation_dropout": 0.2,
                 "optimizer.clip_norm": 1.0, "optimizer.eps": 1e-4, "train.precision": "fp32"}
        alone = plain | {"batch.accumulate": OPTIONS.ranks}
        self.train("many", 12, launcher=self.launcher(), **plain)
        self.train("alone", 12, **alone)
        one, many = tensors(self.weights("alone", 12)), tensors(self.weights("many", 12))
        worst = max(abs(a - b) for name in one if name.startswith("master/") for a, b in zip(one[name], many[name]))
        # Gradients of size 1 differ by 1e-6 when summed in another order; AdamW divides that by eps.
        self.assertLess(worst, 12 * 3e-3 * 1e-6 / 1e-4)
        self.train("many", 12, launcher=self.launcher(), resume=True, **plain)  # all ranks find that all is done
        # And the other way: a checkpoint of several ranks continues on one.
        self.train("many", 14, resume=True, **alone)
        self.train("alone", 14, resume=True, **alone)
        a, b = self.losses("alone")[14], self.losses("many")[14]
        self.assertAlmostEqual(a, b, delta=1e-3 * abs(a))
        # And on several ranks, which then agree on what the first of them finds in the folder.
        shutil.rmtree(f"{self.root}/many/model")
        self.train("many", 16, launcher=self.launcher(), resume=True, **plain)
        self.assertEqual(max(self.losses("many")), 16)

    def test_a_signal_ends_all_ranks_with_a_checkpoint(self):
        run = subprocess.Popen([*self.launcher(), *self.command("ranks", 100000)], stderr=subprocess.PIPE, text=True)
        self.await_steps("ranks", 5)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
        self.assertNotEqual(run.returncode, 0)
        saved = max(int(name[5:]) for name in os.listdir(f"{self.root}/ranks/checkpoints") if name.startswith("step-"))
        self.train("ranks", saved + 2, resume=True)
        self.assertEqual(max(self.losses("ranks")), saved + 2)

    def test_translates_as_the_run_says_unless_told_otherwise(self):
        self.train("decoding", 2, **{"translate.beam": 3, "translate.length_penalty": 0.5,
                                     "translate.max_length_offset": 7})
        text = f"{self.root}/data/valid.en"
        runs = {(): ["beam 3 (the model's)", "length penalty 0.5 (the model's)", "2 x source + 7 tokens"],
                ("--beam", "2"): ["beam 2 (given)", "length penalty 0.5 (the model's)"]}
        for flags, says in runs.items():
            for command in [["translate", "--input", text, "--output", f"{self.root}/out.pt"],
                            ["eval", "--test", text, f"{self.root}/data/valid.pt"]]:
                done = subprocess.run([OPTIONS.program, *command, "--model", f"{self.root}/decoding", "--device",
                                       OPTIONS.device, *flags], capture_output=True, text=True, timeout=100)
                self.assertEqual(done.returncode, 0, done.stderr)
                for line in says:
                    self.assertIn(line, done.stderr)

    def test_bad_runs_are_refused_with_a_reason(self):
        self.train("taken", 2)
        again = self.train("taken", 2, expect=2)
        self.assertIn("already holds a run", again.stderr)
        bad = self.train("diverges", 200, expect=2, **{"optimizer.lr": 10, "schedule.kind": "constant", "optimizer.clip_norm": 0,
                                                      "schedule.warmup_steps": 0, "train.stop_after_bad_steps": 3,
                                                      "optimizer.weight_decay": 1})
        self.assertIn("non-finite", bad.stderr)

    def test_memory_limit_keeps_the_step_and_its_result(self):
        free = self.train("free", 2, **{"batch.target_tokens": 1024})
        step, activations = re.search(r"([0-9.]+) MiB for the step, ([0-9.]+) MiB of it activations", free.stderr).groups()
        # A third of the activations must go: to micro-batches, to what is computed again, or to both.
        limit = f"{int(1024 * (float(step) - float(activations) / 3))}KiB"
        done = self.train("memory", 2, **{"train.memory": limit, "batch.target_tokens": 1024, "parallel.recompute": "none"})
        self.assertIn("micro-batches of", done.stderr)
        self.assertNotIn("again", done.stderr)
        self.assertRegex(self.train("auto", 2, **{"train.memory": limit, "batch.target_tokens": 1024}).stderr,
                         "train.memory .*: .*(micro-batches of|computes .* again)")
        full = self.train("full", 2, **{"parallel.recompute": "full", "batch.target_tokens": 1024})
        self.assertRegex(full.stderr, r"the backward pass computes .* again \((\d+) of \1 units\)")
        self.assertLess(float(re.search(r"([0-9.]+) MiB of it activations", full.stderr).group(1)), float(activations))
        self.assertEqual(self.losses("full"), self.losses("free"))
        # Still less, with the optimizer's state in host memory; the same weights wherever it lies.
        refused = self.train("nothing", 2, expect=1, **{"train.memory": "100KiB"})
        self.assertIn("use a smaller model", refused.stderr)
        if OPTIONS.device == "cpu":  # on a GPU the workspace of products is most of so small a step
            least = float(re.search(r" tokens need ([0-9.]+) KiB", refused.stderr).group(1))
            limit = f"{int(least * 0.85)}KiB"
            refused = self.train("narrow", 2, expect=1, **{"train.memory": limit})
            self.assertRegex(refused.stderr, "parallel.offload = true fits, in .* and .* of host memory")
            self.train("narrow", 2, **{"train.memory": limit, "parallel.offload": "true"})
        self.train("offloaded", 2, **{"parallel.offload": "true", "batch.target_tokens": 1024})
        self.train("offloaded", 4, resume=True, **{"batch.target_tokens": 1024})
        self.train("free", 4, resume=True, **{"parallel.offload": "true", "batch.target_tokens": 1024})
        self.assertEqual(self.losses("offloaded"), self.losses("free"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *REST], verbosity=2)
