# SPDX-License-Identifier: Apache-2.0
"""What a run does before its first step: usage: start_test.py PATH_OF_SATURATE

Training begins while the corpus is still tokenised, the same whatever the timing; signals are heeded at once.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv[1]

SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
    "model.decoder_layers": 1, "batch.target_tokens": 256, "validate.every_steps": 0, "validate.metric": "loss",
    "train.log_every": 1, "checkpoint.every_minutes": 0, "train.device": "cpu", "data.max_length": 100,
}


def content(path):
    with open(path, "rb") as file:
        return file.read()


class Start(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        numbers = random.Random(1)
        words = ["".join(numbers.choices("abcdefghijklmnopqrstuvwxyz", k=numbers.randint(2, 9))) for _ in range(20000)]
        cls.pair = [f"{cls.root}/train.{side}" for side in ("en", "pt")]
        cls.lines = 90000
        for path in cls.pair:  # about 3 MB each: with a token a byte, three heads of 2^21 tokens
            with open(path, "w", encoding="utf8") as file:
                for _ in range(cls.lines):
                    file.write(" ".join(numbers.choices(words, k=numbers.randint(1, 10))) + "\n")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def command(self, out, pair=None, extra=(), **changes):
        line = [PROGRAM, "train", "--train", *(pair or self.pair), "--out", f"{self.root}/{out}", *extra]
        for key, value in (SMALL | changes).items():
            line += ["--set", f"{key}={value}"]
        return line

    def train(self, out, expect=0, **more):
        done = subprocess.run(self.command(out, **more), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stderr

    def losses(self, out):
        rows = [json.loads(line) for line in content(f"{self.root}/{out}/metrics.jsonl").splitlines()]
        return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}

    def weights(self, out, step):
        return content(f"{self.root}/{out}/checkpoints/step-{step:08d}/training/optimizer.safetensors")

    def test_steps_do_not_depend_on_how_far_tokenising_is(self):
        byte = {"data.tokenizer_type": "byte"}
        begun = self.train("new", **byte, **{"train.max_steps": 12})
        self.assertIn("the rest is tokenised meanwhile", begun)
        # The same with one thread, stopped and resumed on the way.
        self.train("parts", **byte, **{"train.max_steps": 5, "data.workers": 1})
        self.train("parts", extra=["--resume"], **byte, **{"train.max_steps": 12, "data.workers": 1})
        self.assertEqual(self.losses("new"), self.losses("parts"))
        self.assertEqual(self.weights("new", 12), self.weights("parts", 12))
        # And from a cache that is whole.
        for name in os.listdir(f"{self.root}/new"):
            if name != "data":
                path = f"{self.root}/new/{name}"
                (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
        tokens = f"{self.root}/new/data/train.tokens"
        if not os.path.exists(tokens):
            self.train("long", **byte, **{"train.max_steps": 400})
            shutil.copy(f"{self.root}/long/data/train.tokens", tokens)
        self.assertIn("(cached)", self.train("new", **byte, **{"train.max_steps": 12}))
        self.assertEqual(self.losses("new"), self.losses("parts"))

    def test_a_late_mistake_ends_the_run_with_its_place(self):
        bad = f"{self.root}/bad.en"
        lines = content(self.pair[0]).split(b"\n")
        lines[-10] = b"\xff"
        with open(bad, "wb") as file:
            file.write(b"\n".join(lines))
        said = self.train("late", 2, pair=[bad, self.pair[1]],
                          **{"data.tokenizer_type": "byte", "train.max_steps": 10**6})
        self.assertIn(f"bad.en:{self.lines - 8}: byte 1", said)
        self.assertFalse(os.path.exists(f"{self.root}/late/data/train.tokens"))

    def test_signals_are_heeded_before_the_first_step(self):
        for name, sent, wait in [("reading", signal.SIGINT, 0.3), ("learning", signal.SIGTERM, 2.0)]:
            run = subprocess.Popen(self.command(name, **{"train.max_steps": 10**6, "data.vocab_size": 32000}),
                                   stderr=subprocess.PIPE, text=True)
            time.sleep(wait)
            begin = time.monotonic()
            run.send_signal(sent)
            said = run.communicate(timeout=60)[1]
            self.assertEqual(run.returncode, 130, said)
            # A second is what it is made for; the machine of the test may be busy.
            self.assertLess(time.monotonic() - begin, 5, said)

    def test_says_what_it_does_within_seconds(self):
        begin = time.monotonic()
        run = subprocess.Popen(self.command("told", **{"train.max_steps": 1, "data.vocab_size": 32000}),
                               stderr=subprocess.PIPE, text=True)
        first = run.stderr.readline()
        waited = time.monotonic() - begin
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
        # A machine that has learned the pieces before anything is due says what came of it.
        self.assertRegex(first, r"^(tokenizer: (\S+ lines read|learning \d+ pieces from )|vocabulary of \d+, not 32000)")
        self.assertLess(waited, 10)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
