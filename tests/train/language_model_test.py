# SPDX-License-Identifier: Apache-2.0
"""What `saturate train --train text.txt --preset gpt2-124m` does: usage: language_model_test.py PATH_OF_SATURATE"""
import json
import os
import random
import re
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

    def run_program(self, *arguments, code=0, stdin=""):
        done = subprocess.run([PROGRAM, *arguments], input=stdin, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def perplexity(self, *arguments):
        said = self.run_program("eval", "--model", f"{self.root}/run", "--device", "cpu", *arguments).stdout
        found = re.fullmatch(r"perplexity = \S+ \(loss (\S+) a token, (\d+) tokens? in (.*)\)\n", said)
        self.assertTrue(found, said)
        return float(found[1]), int(found[2]), found[3]

    STREAM = ["--set", "data.format=stream", "--set", "data.vocab_size=200", "--set", "data.max_length=32", "--set", "model.max_positions=32",
              "--batch", "256"]

    def test_eval_reads_text_as_the_run_did(self):
        with open(self.text, encoding="utf8") as file:
            lines = file.read().splitlines()[:40]
        valid, by_line = f"{self.root}/valid.txt", f"{self.root}/valid.jsonl"
        with open(valid, "w", encoding="utf8") as file:
            file.write("\n".join(lines) + "\n")
        with open(by_line, "w", encoding="utf8") as file:
            file.writelines(json.dumps({"text": line}) + "\n" for line in lines)
        said, _ = self.train(*self.STREAM, "--valid", valid, "--set", "validate.every_steps=1", "--set", "validate.metric=loss")
        validation = float(re.search(r"valid at step 1: loss (\S+)", said)[1])
        loss, tokens, windows = self.perplexity("--test", valid)
        self.assertEqual(windows, f"{-(-tokens // 32)} windows of 32")
        # Validation leaves out a rest that fills no window.
        self.assertAlmostEqual(loss, validation, delta=0.01)
        self.run_program("quantize", "--model", f"{self.root}/run", "--out", f"{self.root}/int8")
        quantized = self.run_program("eval", "--model", f"{self.root}/int8", "--device", "cpu", "--test", valid).stdout
        self.assertIn(f"{tokens} tokens in {windows})", quantized)
        lines_loss, lines_tokens, documents = self.perplexity("--test", valid, "--format", "lines")
        self.assertEqual(documents, "40 lines")
        self.assertNotAlmostEqual(lines_loss, loss, delta=1e-4)
        self.assertEqual(self.perplexity("--test", by_line), (lines_loss, lines_tokens, documents))
        blank = f"{self.root}/blank.txt"
        with open(blank, "w", encoding="utf8") as file:
            file.write("\n\n")
        model = ["eval", "--model", f"{self.root}/run", "--device", "cpu"]
        self.assertIn("nothing to predict", self.run_program(*model, "--test", blank, "--format", "lines", code=2).stderr)
        self.assertIn("--output is for", self.run_program(*model, "--test", valid, "--output", blank, code=2).stderr)

    def test_a_refused_resume_leaves_the_run_as_it_was(self):
        self.train(*self.STREAM)
        with open(f"{self.root}/run/config.toml", encoding="utf8") as file:
            before = file.read()
        resume = ["train", "--resume", "--out", f"{self.root}/run", "--steps", "2", "--device", "cpu"]
        for wrong, says in [("data.format=lines", "does not belong to this corpus"), ("data.vocab_size=150", "data.vocab_size is 150 and was 200"),
                            ("data.tokenizer_type=bpe", 'data.tokenizer_type is "bpe" and was "unigram"')]:
            self.assertIn(says, self.run_program(*resume, "--set", wrong, code=2).stderr)
            with open(f"{self.root}/run/config.toml", encoding="utf8") as file:
                self.assertEqual(file.read(), before, wrong)
        self.assertIn("step 2/2", self.run_program(*resume).stderr)

    def test_one_long_line_gives_the_vocabulary_of_many(self):
        with open(self.text, encoding="utf8") as file:
            text = file.read()
        self.train(*self.STREAM, "--set", "data.vocab_size=300")
        with open(self.text, "w", encoding="utf8") as file:
            file.write(text.replace("\n", " "))
        shutil.rmtree(f"{self.root}/run")
        said, config = self.train(*self.STREAM, "--set", "data.vocab_size=300")
        self.assertNotIn("not enough pieces", said)
        self.assertEqual(config["vocab_size"], 300)
        with open(self.text, "w", encoding="utf8") as file:
            file.write("\n \n")
        done = self.run_program("train", "--train", self.text, "--preset", "gpt2-124m", "--out", f"{self.root}/blank", *SMALL, *self.STREAM, code=2)
        self.assertIn("no line has text to train the tokenizer on", done.stderr)

    def test_the_key_of_jsonl_has_any_name(self):
        with open(self.text, encoding="utf8") as file:
            lines = file.read().splitlines()
        self.text = f"{self.root}/text.jsonl"
        with open(self.text, "w", encoding="utf8") as file:
            file.writelines(json.dumps({"content": line}) + "\n" for line in lines)
        self.train("--set", "data.vocab_size=200", "--set", "data.max_length=32", "--set", "data.languages=content")
        self.assertEqual(self.perplexity("--test", self.text)[2], f"{len(lines)} lines")
        done = self.run_program("train", "--train", self.text, "--preset", "gpt2-124m", "--out", f"{self.root}/no", *SMALL, code=2)
        self.assertIn("a language model's one key", done.stderr)
        done = self.run_program("train", "--train", self.text, "--preset", "gpt2-124m", "--out", f"{self.root}/no", *SMALL,
                                "--set", "data.languages=content", "--set", "data.vocab_size=200", "--set", "data.max_length=4096", code=2)
        self.assertIn("data.max_length is 4096, and the model takes 1024 tokens", done.stderr)
        # Who forgets the preset is told of it.
        done = self.run_program("train", "--train", self.text, "--set", "data.format=stream", "--out", f"{self.root}/no", code=2)
        self.assertIn("--preset gpt2-124m", done.stderr)

    def test_labels_are_not_smoothed_unless_asked_for(self):
        losses = {}
        for smoothing in (None, 0.0, 0.1):
            shutil.rmtree(f"{self.root}/run", ignore_errors=True)
            self.train(*self.STREAM, "--steps", "3", "--lr", "0.01", "--set", "schedule.warmup_steps=1",
                       *(["--set", f"train.label_smoothing={smoothing}"] if smoothing is not None else []))
            with open(f"{self.root}/run/model/model.safetensors", "rb") as file:
                losses[smoothing] = file.read()
        self.assertEqual(losses[None], losses[0.0])
        self.assertNotEqual(losses[None], losses[0.1])

    def test_a_tokenizer_json_goes_along_with_the_run(self):
        valid = f"{self.root}/valid.txt"
        with open(self.text, encoding="utf8") as file, open(valid, "w", encoding="utf8") as out:
            out.writelines(file.readlines()[:40])
        self.train(*self.STREAM)
        base = f"{self.root}/base"
        shutil.move(f"{self.root}/run/model", base)
        shutil.rmtree(f"{self.root}/run")
        for name in ("source.spm", "target.spm", "manifest.json"):  # as others publish models
            os.remove(f"{base}/{name}")
        self.run_program("eval", "--model", base, "--device", "cpu", "--test", valid, "--score")
        # Where neither file names an end there is nothing to put behind a text.
        os.remove(f"{base}/generation_config.json")
        with open(f"{base}/config.json", encoding="utf8") as file:
            config = json.load(file)
        with open(f"{base}/config.json", "w", encoding="utf8") as file:
            json.dump({**config, "eos_token_id": -1}, file)
        done = self.run_program("train", "--init-from", base, "--train", self.text, "--out", f"{self.root}/no", "--device", "cpu", "--steps", "1", code=2)
        self.assertIn("eos_token_id", done.stderr)
        with open(f"{base}/config.json", "w", encoding="utf8") as file:
            json.dump(config, file)
        # What makes a prompt of a chat goes along as well; of several the one that is meant without a name.
        template = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}é"
        with open(f"{base}/tokenizer_config.json", encoding="utf8") as file:
            settings = json.load(file)
        # So do the names that other programs ask for.
        names = {"bos_token": "</s>", "unk_token": "<unk>", "additional_special_tokens": ["<pad>"], "add_bos_token": False}
        settings |= names
        settings["chat_template"] = [{"name": "tools", "template": "no"}, {"name": "default", "template": template}]
        with open(f"{base}/tokenizer_config.json", "w", encoding="utf8") as file:
            json.dump(settings, file)
        # A config.toml of another program beside the model is nobody's run.
        with open(f"{self.root}/config.toml", "w", encoding="utf8") as file:
            file.write("[server]\nport = 1\n")
        tune = ["train", "--init-from", base, "--train", self.text, "--valid", valid, "--set", "data.format=stream", "--out", f"{self.root}/tuned",
                "--steps", "3", "--lr", "0.001", "--set", "schedule.warmup_steps=1", "--set", "validate.every_steps=3", "--batch", "256",
                "--device", "cpu"]
        first = float(re.search(r"valid at step 0: loss (\S+)", self.run_program(*tune).stderr)[1])
        with open(valid, encoding="utf8") as file:
            self.assertGreater(len(file.read()), 1000)
        found = re.search(r"loss (\S+) a token", self.run_program("eval", "--model", base, "--device", "cpu", "--test", valid,
                                                                  "--format", "stream").stdout)
        self.assertAlmostEqual(first, float(found[1]), delta=0.02)  # the end of the text is predicted in one of them
        with open(f"{base}/tokenizer.json", "rb") as before, open(f"{self.root}/tuned/model/tokenizer.json", "rb") as after:
            self.assertEqual(before.read(), after.read())
        with open(f"{self.root}/tuned/model/chat_template.jinja", encoding="utf8") as file:
            self.assertEqual(file.read(), template)
        os.remove(f"{self.root}/tuned/model/chat_template.jinja")
        os.remove(f"{self.root}/tuned/model/tokenizer_config.json")
        again = self.run_program("train", "--resume", "--out", f"{self.root}/tuned", "--steps", "5", "--device", "cpu").stderr
        self.assertIn("resumed from", again)
        self.assertIn("step 5/5", again)
        with open(f"{self.root}/tuned/model/chat_template.jinja", encoding="utf8") as file:
            self.assertEqual(file.read(), template)
        with open(f"{self.root}/tuned/model/tokenizer_config.json", encoding="utf8") as file:
            kept = json.load(file)
        self.assertEqual({k: kept.get(k) for k in names}, names)
        self.assertEqual(kept["pad_token"], settings["pad_token"])
        text = self.run_program("generate", "--model", f"{self.root}/tuned", "--device", "cpu", "--prompt", "ab", "--max-tokens", "5").stdout
        self.assertTrue(text.startswith("ab"), text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
