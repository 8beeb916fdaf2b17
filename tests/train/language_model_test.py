# SPDX-License-Identifier: Apache-2.0
"""What `saturate train --train text.txt --preset gpt2-124m` does: usage: language_model_test.py PATH_OF_SATURATE"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv[1])
# The preset made small where that decides nothing that is tested here.
SMALL = ["--set", "model.d_model=32", "--set", "model.heads=2", "--set", "model.ffn=64", "--set", "model.decoder_layers=1",
         "--device", "cpu", "--steps", "1", "--set", "validate.every_steps=0"]


class LanguageModel(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.text = f"{self.root}/text.txt"
        draw = random.Random(1)
        words = ["".join(draw.choices("abcdefghijklmnopqrst", k=draw.randint(1, 7))) for _ in range(400)]
        with open(self.text, "w", encoding="utf8") as file:
            for _ in range(600):
                file.write(" ".join(draw.choices(words, k=12)) + "\n")

    def tearDown(self):
        shutil.rmtree(self.root)

    def train(self, *more):
        done = subprocess.run([PROGRAM, "train", "--train", self.text, "--preset", "gpt2-124m", "--out", f"{self.root}/run",
                               *SMALL, *more], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(f"{self.root}/run/model/config.json", encoding="utf8") as file:
            return done.stderr, json.load(file)

    def test_vocabulary_and_context_are_those_of_the_preset(self):
        said, config = self.train()
        vocabulary = config["vocab_size"]
        self.assertGreater(vocabulary, 400)
        self.assertEqual(config["n_positions"], 1024)
        # Too little text for 50257 pieces: it says so, and what that makes of the preset.
        self.assertIn(f"vocabulary of {vocabulary}, not 50257: the text has not enough pieces for more\n", said)
        self.assertRegex(said, rf"gpt2-124m has 1\.6.M parameters with its vocabulary of 50257; with one of {vocabulary} it has ")
        with open(f"{self.root}/run/config.toml", encoding="utf8") as file:
            self.assertIn("# vocab_size = from the preset\n", file.read())

    def test_a_given_vocabulary_is_taken(self):
        said, config = self.train("--set", "data.vocab_size=100", "--set", "data.max_length=64")
        self.assertEqual(config["vocab_size"], 100)
        self.assertNotIn("not enough pieces", said)
        self.assertIn("with one of 100 it has", said)

    def test_mixers_are_chosen_by_layer(self):
        linear = ["--set", "model.decoder_layers=2", "--set", "model.mixers=linear_attention,self_attention",
                  "--set", "data.tokenizer_type=byte", "--set", "data.max_length=64"]
        _, config = self.train(*linear)
        # No class of transformers computes it, so the folder is in our own format; it is read like any other.
        self.assertEqual((config["model_type"], config["mixers"]), ("saturate", "linear_attention,self_attention"))
        model = f"{self.root}/run/model"
        done = subprocess.run([PROGRAM, "generate", "--model", model, "--device", "cpu", "--prompt", "ab", "--max-tokens", "5"],
                              capture_output=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith(b"ab"), done.stdout)
        more = [PROGRAM, "train", "--train", self.text, "--init-from", model, "--out", f"{self.root}/more", "--device", "cpu",
                "--steps", "1", "--set", "validate.every_steps=0"]
        done = subprocess.run(more, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([*more, "--set", "model.mixers=linear_attention", "--out", f"{self.root}/other"],
                              capture_output=True, text=True, timeout=100)
        self.assertIn("model.mixers is linear_attention, the model in", done.stderr)
        for mixers, *says in [("attention", "it takes self_attention, linear_attention"),
                              ("linear_attention --preset tiny", "decoder-only")]:
            done = subprocess.run([PROGRAM, "train", "--train", self.text, "--preset", "gpt2-124m", "--out", f"{self.root}/no",
                                   *SMALL, "--set", *f"model.mixers={mixers}".split()], capture_output=True, text=True, timeout=100)
            self.assertNotEqual(done.returncode, 0)
            for text in says:
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
