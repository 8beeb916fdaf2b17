# SPDX-License-Identifier: Apache-2.0
"""Using a model from the command line, as it happens in time: usage: translate_test.py PATH_OF_SATURATE

Lines come out in order, each as soon as it is done; what is done outlives the process.
"""
import json
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv[1]
WAIT = 60  # seconds until a missing line is a failure, on the slowest machine


def content(path):
    with open(path, "rb") as file:
        return file.read()


class Translate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        data = f"{cls.base}/data"
        subprocess.run([PROGRAM, "quickstart-data", "--out", data, "--pairs", "600", "--held-out", "400"],
                       check=True, capture_output=True)
        cls.model = f"{cls.base}/run"
        cls.data = data
        cls.train(cls.model)
        cls.text = f"{data}/test.en"
        with open(cls.text, "ab") as file:  # blank, short and long lines among the others
            file.write(b"\n" + b"It is seven. " * 30 + b"\nyes\n\n" + b"seven " * 60 + b"\n")
        cls.lines = content(cls.text).splitlines(True)

    @classmethod
    def train(cls, out, **changes):
        settings = {"model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64,
                    "model.encoder_layers": 1, "model.decoder_layers": 1, "data.vocab_size": 200,
                    "batch.target_tokens": 512, "validate.every_steps": 0, "validate.metric": "loss",
                    "optimizer.lr": 0.003, "train.max_steps": 60, "train.device": "cpu"}
        line = [PROGRAM, "train", "--out", out, "--train", f"{cls.data}/train.en", f"{cls.data}/train.pt"]
        for key, value in {**settings, **{k.replace("__", "."): v for k, v in changes.items()}}.items():
            line += ["--set", f"{key}={value}"]
        subprocess.run(line, check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.root = tempfile.mkdtemp(dir=self.base)

    def command(self, *args):
        beam = [] if "--beam" in args else ["--beam", "2"]
        return [PROGRAM, "translate", "--model", self.model, "--device", "cpu", *beam, *args]

    def translate(self, *args, **more):
        done = subprocess.run(self.command(*args), capture_output=True, timeout=WAIT, check=False, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def start(self, *args, **more):
        process = subprocess.Popen(self.command(*args), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, **more)
        for pipe in [process.stdin, process.stdout, process.stderr]:
            self.addCleanup(pipe.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def next_line(self, process):
        self.assertTrue(select.select([process.stdout], [], [], WAIT)[0], "no line came")
        return process.stdout.readline()

    def test_a_line_is_the_same_whatever_it_came_with(self):
        whole = self.translate("--input", self.text)
        self.assertEqual(whole.count(b"\n"), len(self.lines))
        self.assertGreater(len(set(whole.splitlines())), 20)  # or their order would show nothing
        for batch in ["16", "300"]:
            self.assertEqual(self.translate("--batch-tokens", batch, input=content(self.text)), whole)
        with subprocess.Popen(["cat", self.text], stdout=subprocess.PIPE) as cat:
            self.assertEqual(self.translate(stdin=cat.stdout), whole)

    def test_a_line_is_read_before_the_next_is_written(self):
        want = self.translate("--input", self.text).splitlines(True)
        process = self.start()
        order = [0, 1, 2, len(want) - 5, len(want) - 4, len(want) - 2, 3]
        for i in order:
            process.stdin.write(self.lines[i])
            process.stdin.flush()
            self.assertEqual(self.next_line(process), want[i])
        process.stdin.write(b"a")  # no line yet
        process.stdin.flush()
        self.assertFalse(select.select([process.stdout], [], [], 0.3)[0])
        process.stdin.close()
        self.assertNotEqual(self.next_line(process), b"")
        self.assertEqual(process.stdout.read(), b"")
        self.assertEqual(process.wait(WAIT), 0)

    def test_a_blank_line_is_its_own_translation_for_certain(self):
        for options in [[], ["--nbest", "2"], ["--attention"]]:
            out = json.loads(self.translate("--json", *options, input=b"\n"))
            [found] = out["translations"]
            self.assertEqual((found["text"], found["tokens"], found["score"]), ("", [], 0))
            self.assertEqual(found["token_log_probabilities"], [0])
        self.assertEqual(self.translate("--alignments", input=b"\n"), b" |||\n")

    def test_lines_beside_that_the_text_has_not_are_told(self):
        beside = f"{self.root}/beside"
        with open(beside, "wb") as file:
            file.write(b"\n\n\n")
        done = subprocess.run(self.command("--prefix-file", beside), input=b"yes\n", capture_output=True, timeout=WAIT,
                              check=True)
        self.assertIn(b"has 3 lines and the text 1", done.stderr)

    def test_a_named_pipe_is_an_input(self):
        pipe = f"{self.root}/pipe"
        os.mkfifo(pipe)
        process = self.start("--input", pipe)
        with open(pipe, "wb", buffering=0) as file:
            file.write(self.lines[0])
            first = self.next_line(process)
            file.write(self.lines[1])
            second = self.next_line(process)
        self.assertEqual(process.wait(WAIT), 0)
        self.assertEqual([first, second], self.translate("--input", self.text).splitlines(True)[:2])

    def test_what_is_done_outlives_a_kill(self):
        want = self.translate("--input", self.text)
        for how in [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]:
            out = f"{self.root}/{how.name}"
            with open(out, "wb") as file:
                file.write(b"precious\n")
            process = self.start("--output", out)
            process.stdin.write(self.lines[0] + self.lines[1])
            process.stdin.flush()
            end = time.monotonic() + WAIT
            while time.monotonic() < end and (not os.path.exists(f"{out}.part") or content(f"{out}.part").count(b"\n") < 2):
                time.sleep(0.02)
            process.send_signal(how)
            self.assertEqual(process.wait(WAIT), -how)
            self.assertEqual(content(f"{out}.part").splitlines(), want.splitlines()[:2])
            self.assertEqual(content(out), b"precious\n")
            if how != signal.SIGKILL:
                self.assertIn(f"{out}.part", process.stderr.read().decode())

    def test_lines_before_a_bad_one_are_done(self):
        want = self.translate("--input", self.text).splitlines()[:3]
        out = f"{self.root}/out"
        for args in [["--output", out], []]:
            done = subprocess.run(self.command(*args), input=b"".join(self.lines[:3]) + b"\xff\n", capture_output=True,
                                  timeout=WAIT, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(b"<standard input>:4:", done.stderr)
            self.assertEqual((content(f"{out}.part") if args else done.stdout).splitlines(), want)
        self.assertFalse(os.path.exists(out))

    def test_groups_differ_unless_nothing_parts_them(self):
        wanted = ["--input", self.text, "--beam", "4", "--nbest", "4"]
        groups = [*wanted, "--beam-groups", "4"]

        def lists(*args):
            found = {}
            for line in self.translate(*args).decode().splitlines():
                number, text, _, score = line.split(" ||| ")
                found.setdefault(number, []).append((float(score), text))
            return [each for each in found.values() if each[0][1]]  # of a blank line there is nothing to list

        apart, alike = lists(*groups), lists(*groups, "--diversity-penalty", "0")
        self.assertEqual(apart, lists(*groups, "--diversity-penalty", "0.5"))
        for each in apart:  # also where two groups came to the same
            self.assertEqual(len(each), 4)
            self.assertEqual([score for score, _ in each], sorted((score for score, _ in each), reverse=True))
        self.assertGreater(sum(len(set(each)) for each in apart), 2 * len(apart))
        self.assertEqual([len(set(each)) for each in alike], [1] * len(alike))
        self.assertEqual(lists(*wanted), lists(*wanted, "--beam-groups", "1"))  # no groups, no penalty

    def test_json_has_what_the_lists_have(self):
        wanted = ["--input", self.text, "--beam", "4", "--nbest", "3"]
        lists = [line.split(" ||| ") for line in self.translate(*wanted, "--word-scores").decode().splitlines()]
        objects = [json.loads(line) for line in self.translate(*wanted, "--json").decode().splitlines()]
        self.assertEqual([o["line"] for o in objects], list(range(len(self.lines))))
        flat = [(str(o["line"]), t) for o in objects for t in o["translations"]]
        self.assertEqual(len(flat), len(lists))
        for (number, text, features, score), (line, t) in zip(lists, flat):
            self.assertEqual((number, text), (line, t["text"]))
            total, words = features.removeprefix("F0= ").split(" WordScores= ")
            self.assertAlmostEqual(float(total), t["log_probability"], places=3)
            self.assertAlmostEqual(float(score), t["score"], places=4)
            words = [float(w) for w in words.split()]
            self.assertEqual(len(words), len(t["tokens"]) + 1)
            # Differences of sums of some hundreds in f32; another run has other rows in its products.
            for one, other in zip(words, t["token_log_probabilities"]):
                self.assertAlmostEqual(one, other, places=3)
            self.assertAlmostEqual(sum(words), t["log_probability"], places=3)
        refused = subprocess.run(self.command("--word-scores"), input=b"a\n", capture_output=True, timeout=WAIT, check=False)
        self.assertEqual(refused.returncode, 2)

    def test_translations_are_what_they_must_be(self):
        plain = [json.loads(line)["translations"][0] for line in self.translate("--json", input=b"".join(self.lines[:20])).splitlines()]
        begun = f"{self.root}/begun"
        with open(begun, "w", encoding="utf8") as file:
            file.writelines("sete\n" if i % 2 else "\n" for i in range(20))
        piece = max((t for p in plain for t in p["tokens"]), key=[t for p in plain for t in p["tokens"]].count)
        got = [json.loads(line)["translations"][0] for line in self.translate(
            "--json", "--prefix-file", begun, "--suppress", piece, "--no-repeat-ngram", "1", "--min-length", "3",
            "--max-length", "6", input=b"".join(self.lines[:20])).splitlines()]
        for i, (one, before) in enumerate(zip(got, plain)):
            tokens = one["tokens"]
            if i % 2:
                self.assertTrue(one["text"].startswith("sete"))
                prefix = one["token_log_probabilities"].index(next(p for p in one["token_log_probabilities"] if p < 0))
                self.assertGreater(prefix, 0)
                tokens = tokens[prefix:]
            self.assertTrue(3 <= len(tokens) <= 6, tokens)
            self.assertNotIn(piece, tokens)
            self.assertEqual(len(set(one["tokens"])), len(one["tokens"]))
        first = json.loads(self.translate("--json", "--first-piece", plain[0]["tokens"][0], input=self.lines[3]))
        self.assertEqual(first["translations"][0]["tokens"][0], plain[0]["tokens"][0])
        for args, reason in [(["--first-piece", "no such piece"], b"--first-piece: the vocabulary has no piece"),
                             (["--prefix-file", begun], b"ends after line 20 and the text goes on")]:
            refused = subprocess.run(self.command(*args), input=b"a\n" * 21, capture_output=True, timeout=WAIT, check=False)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(reason, refused.stderr)

    def test_n_best_lists_are_those_of_moses(self):
        best = self.translate("--input", self.text, "--beam", "4").decode().splitlines()
        lists = {}
        for line in self.translate("--input", self.text, "--beam", "4", "--nbest", "3").decode().splitlines():
            number, text, features, score = line.split(" ||| ")
            name, log_probability = features.split(" ")
            self.assertEqual(name, "F0=")
            lists.setdefault(int(number), []).append((text, float(log_probability), float(score)))
        self.assertEqual(list(lists), list(range(len(best))))  # every line, in its order
        for text, found in zip(best, lists.values()):
            self.assertEqual(found[0][0], text)
            self.assertLessEqual(len(found), 3)
            self.assertEqual([score for *_, score in found], sorted((score for *_, score in found), reverse=True))
            self.assertTrue(all(p <= score <= 0 for _, p, score in found))  # a sum, and the same divided by the length
        self.assertGreater(sum(len(found) == 3 for found in lists.values()), len(lists) // 2)
        refused = subprocess.run(self.command("--nbest", "9"), input=b"a\n", capture_output=True, timeout=WAIT, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn(b"give --beam 9", refused.stderr)

        # The score of a translation is that of the same text given, where the model spelled it with
        # the pieces that the tokenizer takes: this one, hardly trained, does so about half of the time.
        # (scorer_test.cpp compares all, by their ids.)
        target = f"{self.root}/target"
        with open(target, "w", encoding="utf8") as file:
            file.writelines(f"{found[0][0]}\n" for found in lists.values())
        scores = subprocess.run([PROGRAM, "eval", "--model", self.model, "--device", "cpu", "--score", "--test", self.text,
                                 target], capture_output=True, timeout=WAIT, check=True).stdout.decode().splitlines()
        self.assertEqual(len(scores), len(lists))
        equal = 0
        for source, line, found in zip(self.lines, scores, lists.values()):
            log_probability, tokens = line.split("\t")
            self.assertGreaterEqual(int(tokens), 1)
            equal += abs(float(log_probability) - found[0][1]) < 2e-3 or not source.strip()
        self.assertGreater(equal, len(scores) // 4)

    def test_models_translate_together(self):
        other = f"{self.root}/other"
        self.train(other, train__seed=2, model__decoder_layers=2, model__d_model=48, model__heads=4)
        lists = ["--nbest", "2", "--input", self.text]
        alone = self.translate(*lists)
        self.assertEqual(self.translate("--model", self.model, *lists), alone)
        self.assertEqual(self.translate("--model", self.model, "--model", self.model, "--weights", "1,2,0.5", *lists), alone)
        both = self.translate("--model", other, "--weights", "1.5,0.5", *lists)
        self.assertNotEqual(both, alone)
        one_by_one = [self.translate("--model", other, "--weights", "1.5,0.5", "--nbest", "2", input=line)
                      for line in self.lines[-8:]]
        lines = both.decode().splitlines(True)
        last = int(lines[-1].split(" ||| ")[0])
        for i, got in enumerate(one_by_one):
            want = [line.split(" ||| ", 1)[1] for line in lines if int(line.split(" ||| ")[0]) == last - 7 + i]
            self.assertEqual([line.split(" ||| ", 1)[1] for line in got.decode().splitlines(True)], want)

        # A score is the weighted mean of what each model alone says of the translation, in ids, which a text may spell otherwise.
        source, target = f"{self.root}/source", f"{self.root}/target"
        with open(source, "w", encoding="utf8") as file:
            file.writelines(" ".join(str(2 + i * j % 97) for j in range(1, 4 + i % 9)) + " 0\n" for i in range(1, 41))
        best = [line.split(" ||| ")[1:3] for line in self.translate(
            "--model", other, "--weights", "1.5,0.5", "--ids", "--input", source, "--nbest", "1").decode().splitlines()]
        with open(target, "w", encoding="utf8") as file:
            file.writelines(f"{text} 0\n" for text, _ in best)
        scores = [[float(line.split("\t")[0]) for line in subprocess.run(
            [PROGRAM, "eval", "--model", model, "--device", "cpu", "--ids", "--score", "--test", source, target], capture_output=True,
            timeout=WAIT, check=True).stdout.decode().splitlines()] for model in (self.model, other)]
        self.assertEqual([len(best), len(scores[0]), len(scores[1])], [40, 40, 40])
        for a, b, (text, features) in zip(*scores, best):
            self.assertAlmostEqual(0.75 * a + 0.25 * b, float(features.split(" ")[1]), delta=2e-3, msg=text)
            self.assertGreater(abs(a - b), 1e-2)

        small = f"{self.root}/small"
        self.train(small, data__vocab_size=120, train__max_steps=1)
        for args, reason in [(["--model", small], b"of the source vocabulary is "), (["--weights", "1,2"], b"2 weights for 1 model;"),
                             (["--model", other, "--weights", "1"], b"1 weight for 2 models;"),
                             (["--model", other, "--weights", "1,-1"], b"--weights"),
                             (["--model", other, "--adapter", other], b"--adapter is for one model"),
                             (["--model", self.model] * 8, b"9 models are given; at most 8")]:
            refused = subprocess.run(self.command(*args), input=b"a\n", capture_output=True, timeout=WAIT, check=False)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(reason, refused.stderr)
            self.assertEqual(refused.stdout, b"")

    def test_perplexity_is_that_of_validation(self):
        text = f"{self.root}/text"
        with open(text, "wb") as file:
            file.writelines(line for line in self.lines[:300] if line.strip())
        settings = {"model.preset": "gpt2-124m", "model.d_model": 32, "model.heads": 2, "model.ffn": 64,
                    "model.decoder_layers": 1, "model.max_positions": 64, "data.vocab_size": 150, "data.max_length": 64,
                    "data.format": "lines", "batch.target_tokens": 512, "train.max_steps": 20, "train.device": "cpu",
                    "optimizer.lr": 0.003}
        line = [PROGRAM, "train", "--out", f"{self.root}/lm", "--train", text, "--valid", text]
        for key, value in settings.items():
            line += ["--set", f"{key}={value}"]
        trained = subprocess.run(line, capture_output=True, timeout=WAIT, check=True).stderr.decode()
        loss = float(re.findall(r"valid at step 20: loss ([0-9.]+)", trained)[-1])

        def evaluate(*args):
            return subprocess.run([PROGRAM, "eval", "--model", f"{self.root}/lm", "--device", "cpu", *args],
                                  capture_output=True, timeout=WAIT, check=True).stdout.decode()
        printed = evaluate("--test", text)
        perplexity, mean, tokens = re.match(r"perplexity = ([0-9.]+) \(loss ([0-9.]+) a token, ([0-9]+) tokens", printed).groups()
        self.assertAlmostEqual(float(mean), loss, delta=2e-4)  # both are rounded to 4 digits
        self.assertAlmostEqual(math.log(float(perplexity)), float(mean), delta=2e-4)
        scores = [line.split("\t") for line in evaluate("--score", "--test", text).splitlines()]
        self.assertEqual(sum(int(count) for _, count in scores), int(tokens))
        self.assertAlmostEqual(-sum(float(p) for p, _ in scores) / int(tokens), float(mean), delta=2e-4)

    def test_an_error_does_not_wait_for_input(self):
        process = self.start("--output", f"{self.root}/none/out")  # its input stays open and silent
        self.assertEqual(process.wait(WAIT), 1)
        with open("/dev/full", "wb") as full:
            process = subprocess.Popen(self.command(), stdin=subprocess.PIPE, stdout=full, stderr=subprocess.DEVNULL)
        self.addCleanup(process.stdin.close)
        process.stdin.write(self.lines[0])
        process.stdin.flush()
        self.assertEqual(process.wait(WAIT), 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
