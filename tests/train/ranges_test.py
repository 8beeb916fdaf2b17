# SPDX-License-Identifier: Apache-2.0
"""Both ends of the documented range of every configuration key: usage: ranges_test.py PATH_OF_SATURATE

Numbers are taken from `saturate train --help-config`. An end is trained with, saved as it was given and translated
or generated with, or it is refused before training with a line that names the key. Ends that go together are set
together, so that a few runs try them all.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
UNBOUNDED = 10 ** 15

SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
    "model.decoder_layers": 1, "data.vocab_size": 200, "batch.target_tokens": 256, "validate.every_steps": 2,
    "validate.max_sentences": 4, "checkpoint.every_minutes": 0, "train.max_steps": 2, "train.device": "cpu",
}
LANGUAGE_MODEL = {"model.preset": "gpt2-124m", "data.max_length": 32, "model.max_positions": 32, "validate.metric": "loss"}

# Ends that this text or a test's time cannot bear, or that end a run before it has trained: tried alone below, or not
# at all for the time a step takes.
ALONE = {
    ("model.d_model", 65536), ("model.heads", 1024), ("model.kv_heads", 1024), ("model.encoder_layers", 0),
    ("data.vocab_size", 16), ("data.max_length", 2), ("model.max_positions", 8), ("batch.target_tokens", 1 << 24),
    ("batch.source_tokens", 1 << 24), ("translate.max_length_factor", 0), ("translate.max_length_factor", 100),
    ("translate.max_length_offset", 1 << 16), ("parallel.dp", 65536), ("parallel.tp", 1024), ("parallel.pp", 1024),
    ("parallel.cp", 1024), ("parallel.ep", 1024), ("parallel.chunks", 64),
    ("parallel.dp_shard", 65536),
}
# Refused where the model has no experts, and bounded by its layers where it has. Those of lora need
# a trained model beside which adapters lie (finetune_test).
OF_EXPERTS = {"model.experts", "model.experts_per_token", "model.expert_every", "model.capacity_factor", "model.router_aux_loss",
              "model.router_z_loss"}
TOO_LONG = {
    ("model.encoder_layers", 1024), ("model.decoder_layers", 1024), ("model.ffn", 1 << 20), ("model.max_positions", 1 << 22),
    ("batch.accumulate", 65536), ("batch.sequences", 1 << 22), ("data.max_length", 1 << 20), ("train.max_steps", UNBOUNDED),
    ("train.max_steps", 0), ("train.max_epochs", UNBOUNDED), ("checkpoint.every_steps", 0), ("validate.every_steps", 0),
    ("validate.every_steps", UNBOUNDED), ("optimizer.lr", 10), ("train.max_seconds", 0),
    ("translate.batch_tokens", 1 << 24),
}


def run(*args, stdin=""):
    return subprocess.run([PROGRAM, *map(str, args)], input=stdin, capture_output=True, text=True, errors="replace", timeout=240,
                          check=False)


def documented():
    """(key, low, high) of every number; high None where there is no natural end."""
    lines = run("train", "--help-config").stdout.splitlines()[1:]
    found = []
    for name, _, kind in zip(lines[0::3], lines[1::3], lines[2::3]):
        name = name.split("=")[0].strip()
        if between := re.search(r"number from (\S+) to (\S+)", kind):
            found.append((name, float(between[1]), float(between[2])))
        elif least := re.search(r"number, (\S+) or more", kind):
            found.append((name, float(least[1]), float(UNBOUNDED)))
    return found


def text_of(value):
    return str(int(value)) if value == int(value) else repr(value)


class Ranges(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        data = f"{cls.base}/data"
        run("quickstart-data", "--out", data, "--pairs", 300, "--held-out", 20)
        cls.pair = [f"{data}/train.en", f"{data}/train.pt"], [f"{data}/valid.en", f"{data}/valid.pt"]
        cls.text = [f"{data}/train.pt"], [f"{data}/valid.pt"]
        cls.keys = documented()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def train(self, settings, files):
        out = tempfile.mkdtemp(dir=self.base) + "/out"
        line = ["train", "--out", out, "--train", *files[0], "--valid", *files[1]]
        for key, value in settings.items():
            line += ["--set", *f"{key}={value}".split()]
        return out, run(*line)

    def saved(self, out):
        """Key -> text, of the configuration that the run says it had."""
        values, section = {}, ""
        with open(f"{out}/config.toml", encoding="utf8") as file:
            for line in file:
                if header := re.match(r"\[(.*)\]", line):
                    section = header[1] + "."
                elif entry := re.match(r"(\w+) = (.*)", line):
                    values[section + entry[1]] = entry[2].strip('"')
        return values

    def together(self, end, base, files, use):
        given = {k: v[end] for k, *v in self.keys if (k, v[end]) not in ALONE | TOO_LONG
                 and k not in OF_EXPERTS and not k.startswith("lora.")}
        settings = base | {k: text_of(v) for k, v in given.items()}
        out, done = self.train(settings, files)
        self.assertEqual(done.returncode, 0, done.stderr)
        saved = self.saved(out)
        for key, value in given.items():
            if key in saved:
                self.assertEqual(float(saved[key]), value, key)
        self.assertEqual(use(out).returncode, 0)
        return len(given)

    def translate(self, out):
        done = run("translate", "--model", out, "--device", "cpu", stdin="hello\nseven\n")
        self.assertEqual((done.returncode, done.stdout.count("\n")), (0, 2), done.stderr)
        return done

    def generate(self, out):
        return run("generate", "--model", out, "--device", "cpu", "--prompt", "a", "--max-tokens", 2)

    def test_every_key_is_known(self):
        self.assertGreater(len(self.keys), 50)
        for key, value in ALONE | TOO_LONG:
            self.assertIn(value, [end for k, *ends in self.keys if k == key for end in ends], f"no end of {key}")

    def test_low_ends_translate(self):
        self.assertGreater(self.together(0, SMALL | {"data.max_length": 64}, self.pair, self.translate), 40)

    def test_high_ends_translate(self):
        self.assertGreater(self.together(1, SMALL, self.pair, self.translate), 30)

    def test_lengths_of_translations(self):
        for ends in [{"translate.max_length_factor": 100, "translate.max_length_offset": 1 << 16},
                     {"translate.max_length_factor": 0.01, "translate.max_length_offset": 0}, {"translate.max_length_factor": 0}]:
            out, done = self.train(SMALL | ends, self.pair)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.translate(out)

    def test_low_ends_generate(self):
        base = {k: v for k, v in SMALL.items() if k != "model.encoder_layers"} | LANGUAGE_MODEL
        keys = [k for k in self.keys if k[0] != "model.encoder_layers"]
        self.keys, all_keys = keys, self.keys
        try:
            self.together(0, base, self.text, self.generate)
        finally:
            self.keys = all_keys

    def test_ends_that_cannot_be_are_refused_before_training(self):
        for key, value, *says in [
                ("model.d_model", 65536, "head_size"), ("model.heads", 1024, "model.heads 1024"),
                ("model.kv_heads", 1024, "kv_heads is 1024"), ("model.encoder_layers", 0, "encoder_layers is 0"),
                ("data.vocab_size", 16, "data.vocab_size"), ("data.max_length", 2, "data.max_length"),
                ("parallel.dp", 65536, "dp = 65536"), ("parallel.tp", 1024, "parallel.tp"), ("parallel.pp", 1024, "parallel.pp"),
                ("parallel.cp", 1024, "parallel.cp"), ("parallel.ep", 1024, "parallel.ep"), ("parallel.chunks", 64, "chunks"),
                ("parallel.dp_shard", 65536, "dp_shard = 65536"),
                ("model.max_positions", 8, "model.max_positions is 8", "data.max_length"),
                ("translate.max_length_factor", "0 --set translate.max_length_offset=0", "are both 0"),
                ("batch.target_tokens", 1 << 24, "batch.target_tokens"),
                ("batch.source_tokens", 1 << 24, "--set batch.source_tokens=")]:
            out, done = self.train(SMALL | {key: value}, self.pair)
            self.assertIn(done.returncode, (1, 2), (key, done.stderr))
            self.assertFalse(os.path.exists(f"{out}/metrics.jsonl"), key)
            for text in says:
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
