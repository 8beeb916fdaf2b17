# SPDX-License-Identifier: Apache-2.0
"""Several validation and test sets in one run: usage: sets_test.py PATH_OF_SATURATE"""
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv[1])
SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
    "model.decoder_layers": 1, "data.vocab_size": 200, "batch.target_tokens": 512, "schedule.warmup_steps": 10,
    "validate.every_steps": 10, "optimizer.lr": 1e-2, "translate.beam": 2, "train.device": "cpu",
}
LANGUAGE_MODEL = {"model.preset": "gpt2-124m", "model.encoder_layers": 0, "data.max_length": 32, "model.max_positions": 32}


class Sets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        cls.data = f"{cls.base}/data"
        subprocess.run([PROGRAM, "quickstart-data", "--out", cls.data, "--pairs", "300", "--held-out", "20"],
                       check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.out = f"{tempfile.mkdtemp(dir=self.base)}/run"

    def pair(self, name):
        return [f"{self.data}/{name}.en", f"{self.data}/{name}.pt"]

    def train(self, *more, expect=0, train=None, settings=None):
        line = [PROGRAM, "train", "--train", *(train or self.pair("train")), "--out", self.out, "--steps", "20", *more]
        for key, value in (SMALL | (settings or {})).items():
            line += ["--set", f"{key}={value}"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stderr

    def rows(self, kind):
        with open(f"{self.out}/metrics.jsonl", encoding="utf8") as file:
            return [row for row in map(json.loads, file) if row["kind"] == kind]

    def content(self, name):
        with open(f"{self.out}/{name}", encoding="utf8", errors="replace") as file:
            return file.read()

    def test_validation_beside_training_changes_nothing(self):
        def run(beside, *more):
            self.out = f"{tempfile.mkdtemp(dir=self.base)}/run"
            said = self.train("--valid", *self.pair("valid"), "--valid", f"other={self.data}/test.en",
                              f"{self.data}/test.pt", *more, settings={"validate.beside": beside, "validate.every_steps": 4,
                                                                       "train.log_every": 1})
            rows = [{k: v for k, v in row.items() if k != "elapsed_s"} for row in self.rows("valid")]
            files = {}
            for name in ("model/model.safetensors", "checkpoints/step-00000020/model.safetensors"):
                with open(f"{self.out}/{name}", "rb") as file:
                    files[name] = file.read()
            return rows, self.rows("sample"), files, re.findall(r"\(best\)", said)

        before, beside = run("off"), run("on")
        self.assertEqual([row["step"] for row in before[0]], [4, 4, 8, 8, 12, 12, 16, 16, 20, 20])
        self.assertEqual(before, beside)
        # Patience ends both at the same step, whatever validation was not waited for.
        still = ("--set", "optimizer.lr=1e-12", "--set", "validate.patience=2", "--steps", "200")
        ends = []
        for way in ("off", "on"):
            self.out = f"{tempfile.mkdtemp(dir=self.base)}/run"
            self.train("--valid", *self.pair("valid"), *still,
                       settings={"validate.beside": way, "validate.every_steps": 4, "optimizer.lr": 1e-12})
            ends.append(self.rows("end")[0]["step"])
        self.assertEqual(ends, [12, 12])

    def test_each_set_has_its_name_in_every_report(self):
        test = self.pair("test")
        said = self.train("--valid", *self.pair("valid"), "--valid", f"other={test[0]}", test[1],
                          "--test", *test, "--test", f"dev={self.data}/valid.en", f"{self.data}/valid.pt")
        valid = self.rows("valid")
        self.assertEqual([(r["step"], r["set"]) for r in valid], [(10, "valid"), (10, "other"), (20, "valid"), (20, "other")])
        self.assertNotEqual(valid[0]["loss"], valid[1]["loss"])
        self.assertTrue(all(r["bleu"] is not None for r in valid))
        tests = {r["set"]: r for r in self.rows("test")}
        self.assertEqual(sorted(tests), ["dev", "test"])
        best = max((r for r in valid if r["set"] == "valid"), key=lambda r: r["bleu"])["step"]
        steps = [json.loads(line)["step"] for line in self.content("metrics.jsonl").splitlines()]
        self.assertEqual(steps, sorted(steps))
        for name, row in tests.items():
            self.assertEqual(row["model_step"], best)
            self.assertAlmostEqual(row["perplexity"], math.exp(row["loss"]))
            self.assertIn("tok:13a", row["bleu_signature"])
            self.assertIn("nc:6", row["chrf_signature"])
            self.assertRegex(said, rf"test {name}, model of step {best}: BLEU {row['bleu']:.2f} \(nrefs:1.*, chrF2 {row['chrf']:.2f} \(")
        self.assertIn("valid at step 10: loss", said)
        self.assertIn("other at step 10: loss", said)
        # What `saturate eval` says of the model.
        for name, files in [("test", test), ("dev", self.pair("valid"))]:
            done = subprocess.run([PROGRAM, "eval", "--model", self.out, "--device", "cpu", "--quiet", "--test", *files],
                                  capture_output=True, text=True, timeout=100, check=True)
            self.assertEqual(float(re.search(r"BLEU = ([\d.]+)", done.stdout)[1]), round(tests[name]["bleu"], 2))
        page = self.content("report.html")
        for text in ["Validation BLEU and chrF2, other", "<td>dev</td>", f"<td>test</td><td>{tests['test']['bleu']:.2f}</td>"]:
            self.assertIn(text, page)
        events = "".join(self.content(f"tensorboard/{name}") for name in os.listdir(f"{self.out}/tensorboard"))
        for tag in ["valid/loss", "valid/other/bleu", "test/dev/chrf", "test/test/perplexity"]:
            self.assertIn(tag, events)
        self.assertIn(f'test = ["test={test[0]},{test[1]}", "dev={self.data}/valid.en', self.content("config.toml"))
        # A finished run takes further tests.
        done = subprocess.run([PROGRAM, "train", "--resume", "--out", self.out, "--test", f"late={test[0]}", test[1]],
                              capture_output=True, text=True, timeout=100)
        self.assertIn("test late, model of", done.stderr)
        self.assertEqual([r["set"] for r in self.rows("test")][-1], "late")

    def test_the_first_set_decides_what_is_best(self):
        metric = {"validate.metric": "loss"}
        self.train("--valid", *self.pair("valid"), settings=metric)
        alone = self.rows("valid")
        shutil.rmtree(self.out)
        swapped = [f"far={self.data}/train.pt", f"{self.data}/train.en"]
        self.train("--valid", *self.pair("valid"), "--valid", *swapped, settings=metric)
        self.assertEqual([r["loss"] for r in self.rows("valid") if r["set"] == "valid"], [r["loss"] for r in alone])
        self.assertEqual(self.rows("end")[-1]["results"]["best step"], "20")

    def test_language_models_have_perplexities(self):
        text = f"{self.data}/train.pt"
        said = self.train("--valid", f"{self.data}/valid.pt", "--valid", f"en={self.data}/valid.en", "--test",
                          f"{self.data}/test.pt", train=[text], settings=LANGUAGE_MODEL)
        self.assertEqual({r["set"] for r in self.rows("valid")}, {"valid", "en"})
        row, = self.rows("test")
        self.assertIsNone(row["bleu"])
        self.assertRegex(said, rf"test test, model of step 20: perplexity {row['perplexity']:.2f}, loss")

    def test_without_validation_the_last_weights_are_tested(self):
        self.train("--test", *self.pair("test"))
        self.assertEqual(self.rows("test")[0]["model_step"], 20)

    def test_mistakes_are_told_before_the_text_is_read(self):
        valid = self.pair("valid")
        for more, says in [(["--set", "data.test=a.en,a.pt"], "write NAME=SOURCE,TARGET"),
                           (["--set", "data.test=[\"x=a,b\", \"x=c,d\"]"], "two sets are named x"),
                           (["--set", "data.test=x=-"], "standard input"),
                           (["--set", "data.more_valid=[\"x=a,b\"]"], "give the first as data.valid"),
                           (["--valid", *valid, "--test", "a,b", "c"], "a comma separates the files")]:
            said = self.train(*more, expect=2, train=["/no/such", "/no/such"])
            self.assertIn(says, said)
        self.assertIn("/no/such.en", self.train("--valid", *valid, "--test", "/no/such.en", valid[1], expect=1))
        self.assertFalse(os.path.exists(f"{self.out}/data/train.tokens"))

    def test_names_from_files(self):
        done = subprocess.run([PROGRAM, "train", "--valid", "a.b/c=d/v.en", "v.de", "--valid", "v.cs", "x", "--valid", "v.fr", "y",
                               "--test", "n=t.tsv", "--test", "t.tsv", "--print-config"], capture_output=True, text=True)
        self.assertIn('\nvalid = ["a.b/c=d/v.en", "v.de"]\n', done.stdout)
        self.assertIn('\nmore_valid = ["v=v.cs,x", "v-2=v.fr,y"]\n', done.stdout)
        self.assertIn('\ntest = ["n=t.tsv", "t=t.tsv"]\n', done.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
