# SPDX-License-Identifier: Apache-2.0
"""Bad input to train, translate, eval and generate: usage: bad_input_test.py PATH_OF_SATURATE

Every mistake must end with exit code 2 (the user's) or 1 (the machine's), one line that names what,
where and the remedy, and everything that was there before still there.
"""
import gzip
import json
import os
import random
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = sys.argv[1]

SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.decoder_layers": 1,
    "data.vocab_size": 200, "batch.target_tokens": 256, "validate.every_steps": 0, "validate.metric": "loss",
    "checkpoint.every_minutes": 0, "train.max_steps": 2, "train.device": "cpu",
}
LANGUAGE_MODEL = {"model.preset": "gpt2-124m", "data.max_length": 32, "model.max_positions": 32}


def write(path, content):
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def content(path):
    with open(path, "rb") as file:
        return file.read()


def cut(path, size=40):
    with open(path, "r+b") as file:
        file.truncate(size)


def edit_json(path, **changes):
    with open(path, encoding="utf8") as file:
        value = json.load(file)
    write(path, json.dumps(value | changes))


def safetensors(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


class BadInput(unittest.TestCase):
    """A folder of good data with a trained model; every test works in a folder of its own."""

    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        cls.data = f"{cls.base}/data"
        subprocess.run([PROGRAM, "quickstart-data", "--out", cls.data, "--pairs", "300", "--held-out", "20"],
                       check=True, capture_output=True)
        cls.pair = [f"{cls.data}/train.en", f"{cls.data}/train.pt"]
        cls.lines = content(cls.pair[0]).split(b"\n")
        cls.run_folder = f"{cls.base}/run"
        done = cls.saturate(*cls.train_command(cls.run_folder, cls.pair,
                                               {"train.max_steps": 4, "checkpoint.every_steps": 2}))
        assert done.returncode == 0, done.stderr
        done = cls.saturate(*cls.train_command(f"{cls.base}/lm", cls.pair[1:], LANGUAGE_MODEL))
        assert done.returncode == 0, done.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.root = tempfile.mkdtemp(dir=self.base)

    @staticmethod
    def saturate(*args, stdin=None, **more):
        stdin = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run([PROGRAM, *map(str, args)], input=stdin if stdin is not None else b"",
                              capture_output=True, timeout=60, **more)
        done.stdout, done.stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return done

    @staticmethod
    def train_command(out, train, settings=None, extra=()):
        line = ["train", "--out", out, "--train", *train, *extra]
        for key, value in (SMALL | (settings or {})).items():
            line += ["--set", f"{key}={value}"]
        return line

    def errors(self, done):
        lines = done.stderr.splitlines()
        return [line for line in lines
                if line.startswith("saturate: ") and not line.startswith("saturate: warning: ")]

    def refused(self, done, *says, code=2):
        self.assertEqual(done.returncode, code, done.stderr)
        errors = self.errors(done)
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertEqual(done.stderr.splitlines()[-1], errors[0])
        for text in says:
            self.assertIn(text, errors[0])

    def not_trained(self, train, *says, settings=None, extra=(), code=2, out="out", **more):
        out = f"{self.root}/{out}"
        self.refused(self.saturate(*self.train_command(out, train, settings, extra), **more), *says, code=code)
        self.assertFalse(os.path.exists(f"{out}/metrics.jsonl"))
        self.assertFalse(os.path.exists(f"{out}/run.lock"))
        self.assertFalse(os.path.exists(f"{out}/checkpoints"))

    def trained(self, train, settings=None, extra=(), out="out", **more):
        done = self.saturate(*self.train_command(f"{self.root}/{out}", train, settings, extra), **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.errors(done), [])
        return done

    def file(self, name, data):
        return write(f"{self.root}/{name}", data)

    def copy(self, of, name="copy"):
        path = f"{self.root}/{name}"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(of, path)
        return path


class Corpora(BadInput):
    def test_files_that_are_no_text(self):
        text, target = self.lines, self.pair[1]
        bad = lambda line: b"\n".join(text[:6] + [line] + text[7:])
        cases = [
            ("nul.en", bad(b"a\0b"), ":7: ", "NUL"), ("latin.en", bad(b"caf\xe9"), ":7: ", "iconv"),
            ("latin2.en", bad("žába".encode("iso-8859-2")), ":7: ", "iconv -f ISO-8859-2 -t UTF-8"),
            ("cp1250.en", bad("žába".encode("cp1250")), ":7: ", "iconv -f WINDOWS-1250 -t UTF-8"),
            ("utf16cs.en", "žš".encode("utf-16"), ":1: ", "iconv -f UTF-16 -t UTF-8"),
            ("utf16.en", "a\nb".encode("utf-16"), ":1: ", "UTF-16"), ("empty.en", b"", "", "is empty"),
            ("long.en", bad(b"x" * 10_000_000), ":7: ", "longer than 1048576 bytes"),
            ("short.en", b"\n".join(text[:100]) + b"\n", "has 100 lines", "has 300"),
            ("binary.en", random.Random(1).randbytes(5000), ":", "byte"),
        ]
        for name, data, *says in cases:
            path = self.file(name, data)
            self.not_trained([path, target], path, *says)
            self.assertEqual(content(path), data)
        packed = gzip.compress(b"\n".join(text))
        for name, data, why in [("cut.gz", packed[:-200], "truncated"),
                                ("bad.gz", packed[:200] + b"garbage" * 40, "corrupt"),
                                ("cut.zst", b"\x28\xb5\x2f\xfd\x04\x58\x41\x00\x00ab", "zstd")]:
            path = self.file(name, data)
            self.not_trained([path, target], f"{path}:", why, "again", code=1)

    def test_files_that_cannot_be_opened(self):
        target = self.pair[1]
        self.not_trained([f"{self.root}/nothing", target], f"{self.root}/nothing", "check the path", code=1)
        self.assertFalse(os.path.exists(f"{self.root}/out"))  # nothing was there, and nothing was kept
        self.not_trained([self.root, target], self.root, "is a directory", code=1)
        if os.getuid() != 0:
            path = self.file("secret", b"a\n")
            os.chmod(path, 0)
            self.not_trained([path, target], path, "permissions", code=1)

    def test_records_with_wrong_fields(self):
        for name, data, *says in [
                ("one.tsv", "a\tb\nno tab\n", ":2: ", "source<TAB>target"), ("three.tsv", "a\tb\tc\n", ":1: ", "3"),
                ("cut.jsonl", '{"source":"a","target":"b"}\n{"source":"a"\n', ":2: ", "JSON"),
                ("key.jsonl", '{"src":"a","target":"b"}\n', ":1: ", '"source"', "data.languages")]:
            path = self.file(name, data)
            self.not_trained([path], path, *says)

    def test_text_with_nothing_to_learn(self):
        blank = self.file("blank", "\n" * 300)
        self.not_trained([blank, self.pair[1]], blank, "300 empty")
        self.not_trained([blank, blank], blank, "give some text")
        self.not_trained(self.pair, self.pair[0], "300 longer than 2", "data.max_length", settings={"data.max_length": 2})
        self.not_trained(self.pair, blank, "300 empty", extra=["--valid", blank, blank])

    def test_validation_text_is_looked_at_first(self):
        out = f"{self.root}/out"
        short = self.file("short", "a\n")
        self.not_trained(self.pair, short, "has 1 line and", extra=["--valid", short, f"{self.data}/valid.pt"])
        self.not_trained(self.pair, f"{self.root}/no", extra=["--valid", f"{self.root}/no", short], code=1)
        self.assertFalse(os.path.exists(f"{out}/data/train.tokens"))

    def test_number_of_files_must_suit_the_model(self):
        self.not_trained(self.pair[:1], "two files", "data.format")
        self.not_trained(self.pair + self.pair, "two files")
        self.not_trained(self.pair, "decoder-only", settings=LANGUAGE_MODEL)
        self.not_trained(["-"], "data.format", stdin="a\tb\n")
        self.not_trained(["-", "-"], "standard input", settings={"data.format": "parallel"}, stdin="a\n")

    def test_standard_input_trains_like_a_file(self):
        rows = b"".join(s + b"\t" + t + b"\n" for s, t in zip(self.lines, content(self.pair[1]).split(b"\n")) if s)
        done = self.trained(["-"], {"data.format": "tsv"}, stdin=rows)
        self.assertIn("300 of 300 pairs kept", done.stderr)
        done = self.trained(["-"], {"data.format": "tsv", "train.max_steps": 4}, ["--resume"])
        self.assertIn("at step 2", done.stderr)
        self.not_trained(["-"], "standard input is empty", settings={"data.format": "tsv"}, out="no", stdin="")

    def test_process_substitution_trains_like_files(self):
        command = [PROGRAM, *map(str, self.train_command(f"{self.root}/out", []))]
        command[command.index("--train"):command.index("--train") + 1] = []
        line = " ".join(map(shlex.quote, command)) + " --train <(cat {}) <(cat {}) --valid <(cat {}) <(cat {})".format(
            *self.pair, f"{self.data}/valid.en", f"{self.data}/valid.pt")
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("300 of 300 pairs kept", done.stderr)
        # The FIFOs are gone; the run goes on from its copies.
        done = self.trained(["/dev/fd/98", "/dev/fd/99"], {"train.max_steps": 4},
                            ["--resume", "--valid", "/dev/fd/96", "/dev/fd/97"])
        self.assertIn("at step 2", done.stderr)

    def test_a_fifo_without_writer_can_be_interrupted(self):
        for sent in (signal.SIGINT, signal.SIGTERM):
            fifo = f"{self.root}/fifo{sent}"
            os.mkfifo(fifo)
            run = subprocess.Popen([PROGRAM, *map(str, self.train_command(f"{self.root}/out{sent}", [fifo, self.pair[1]]))],
                                   stderr=subprocess.PIPE, text=True)
            time.sleep(1.5)
            begin = time.monotonic()
            run.send_signal(sent)
            errors = run.communicate(timeout=20)[1]
            self.assertEqual(run.returncode, 130, errors)
            self.assertLess(time.monotonic() - begin, 5)
            self.assertFalse(os.path.exists(f"{self.root}/out{sent}/data/train.1.text"))

    def test_bad_lines_are_left_out_when_asked(self):
        source = [*self.lines[:40], b"a\0b", *self.lines[41:60], b"\xff", *self.lines[61:]]
        pair = [self.file("some.en", b"\n".join(source)), self.pair[1]]
        self.not_trained(pair, "some.en:41", "NUL")
        done = self.trained(pair, {"train.max_steps": 4}, ["--skip-bad-lines"])
        self.assertIn("298 of 298 pairs kept", done.stderr)
        self.assertIn("training text: 2 bad lines left out", done.stderr)
        self.assertIn("some.en:61: byte 1", done.stderr)
        self.assertIn("bad lines left out", content(f"{self.root}/out/report.html").decode())
        done = self.saturate("translate", "--model", self.run_folder, "--device", "cpu", "--skip-bad-lines",
                             stdin=b"one\n\xff\ntwo\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.split("\n")
        self.assertEqual((len(lines), lines[1]), (4, ""))
        self.assertIn("1 bad line was written as a blank line", done.stderr)

    def test_a_language_model_learns_and_writes_line_feeds(self):
        text = self.file("verse.txt", "one two\n\n  three four\n" * 200)
        for kind in ("unigram", "bpe"):
            settings = LANGUAGE_MODEL | {"data.format": "stream", "data.tokenizer_type": kind, "train.max_steps": 60,
                                         "optimizer.lr": 1e-2, "schedule.warmup_steps": 5, "data.vocab_size": 64}
            self.trained([text], settings, out=kind)
            done = self.saturate("generate", "--model", f"{self.root}/{kind}", "--device", "cpu", "--quiet",
                                 "--temperature", "0", "--max-tokens", "24", "--prompt", "one two\n")
            self.assertIn("one two\n\n  three four\none two", done.stdout)

    def test_little_text_is_enough(self):
        one = [self.file("one.en", "hello\n"), self.file("one.pt", "ola\n")]
        self.trained(one, extra=["--valid", *one], settings={"validate.metric": "bleu"})
        self.trained(one[:1], LANGUAGE_MODEL, out="lm")
        self.trained(self.pair, {"batch.sequences": 1, "batch.target_tokens": 16}, out="single")
        self.trained(self.pair, {"data.max_length": 12}, ["--valid", f"{self.data}/valid.en", f"{self.data}/valid.pt"],
                     out="filtered")
        gaps = self.file("gaps.txt", "a\n\nb\n")
        self.trained(self.pair, {"validate.metric": "bleu"}, ["--valid", gaps, gaps], out="gaps")


class Settings(BadInput):
    def test_vocabulary_must_suit_the_text(self):
        done = self.trained(self.pair, {"data.vocab_size": 30000})
        self.assertIn("not 30000: the text has not enough pieces", done.stderr)
        self.not_trained(self.pair, self.pair[0], "vocabulary of 20", "data.vocab_size", settings={"data.vocab_size": 20},
                         out="small")

    def test_tokenizer_files(self):
        for name, data in [("noise.model", random.Random(2).randbytes(3000)), ("empty.model", b""),
                           ("cut.model", content(f"{self.run_folder}/data/source.spm")[:1000])]:
            path = self.file(name, data)
            self.not_trained(self.pair, path, settings={"data.tokenizer": path})
        self.not_trained(self.pair, f"{self.root}/no.model", settings={"data.tokenizer": f"{self.root}/no.model"}, code=1)
        spm = f"{self.run_folder}/data/source.spm"
        self.not_trained(self.pair, "data.shared_vocabulary", settings={"data.tokenizer": f"{spm},{spm}"})
        self.trained(self.pair, {"data.tokenizer": f"{spm},{spm}", "data.shared_vocabulary": "false"})

    def test_keys_and_values(self):
        for settings, *says in [
                ({"train.max_step": 1}, "did you mean 'train.max_steps'?"), ({"optimizer.lr": -1}, "optimizer.lr", "0 to 10"),
                ({"train.label_smoothing": 2}, "0 to 0.9"), ({"model.preset": "bse"}, "did you mean 'base'?"),
                ({"train.precision": "fp4"}, "bf16"), ({"train.max_steps": "many"}, "train.max_steps", '"many"')]:
            self.not_trained(self.pair, *says, settings=settings)
        for data, *says in [("[train\n", ":1:7: "), ("[train]\nmax_step = 3\n", ":2:1: ", "did you mean"),
                            (b"\xff\xfe\0", ":1:1: "), (b"\0" * 3_000_000, "1 MiB")]:
            path = self.file("run.toml", data)
            self.not_trained(self.pair, path, *says, extra=["--config", path])

    def test_model_and_machine_are_checked_before_the_text_is_read(self):
        missing = [f"{self.root}/missing.en", f"{self.root}/missing.pt"]
        for settings, *says in [
                ({"model.heads": 3}, "model.d_model 32", "model.heads 3", "divides"),
                ({"model.kv_heads": 3}, "kv_heads is 3"), ({"model.encoder_layers": 0}, "encoder_layers is 0"),
                ({"model.positions": "rotary", "model.d_model": 30}, "even head_size"),
                ({"train.precision": "fp16"}, "on the CPU use fp32 or bf16"), ({"train.device": "tpu"}, '"tpu"', "auto, cpu, cuda")]:
            self.not_trained(missing, *says, settings=settings)
        if "sm_" not in self.saturate("info").stdout:
            done = self.saturate(*self.train_command(f"{self.root}/out", missing, {"train.device": "cuda:99"}))
            self.refused(done, "cuda")

    def test_a_second_try_does_not_keep_the_first_vocabulary(self):
        short = self.file("short", "a\n")
        self.not_trained([short, self.pair[1]], "300")
        self.trained(self.pair, {"data.vocab_size": 150})
        self.assertEqual(json.loads(content(f"{self.root}/out/model/config.json"))["vocab_size"], 150)


class Runs(BadInput):
    def resume(self, run, settings=None, train=None):
        return self.saturate(*self.train_command(run, train or self.pair, {"train.max_steps": 6} | (settings or {}),
                                                 ["--resume"]))

    def test_damaged_checkpoint_is_passed_over(self):
        for name in ["model.safetensors", "config.json", "training/optimizer.safetensors", "training/state.json",
                     "manifest.json", "source.spm"]:
            run = self.copy(self.run_folder)
            cut(f"{run}/checkpoints/step-00000004/{name}")
            done = self.resume(run)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, f"warning: damaged checkpoint passed over: .*step-00000004.*{name}")
            self.assertIn("at step 2", done.stderr)

    def test_without_a_whole_checkpoint_nothing_is_touched(self):
        run = self.copy(self.run_folder)
        for step in ["2", "4"]:
            cut(f"{run}/checkpoints/step-0000000{step}/training/optimizer.safetensors")
        before = content(f"{run}/metrics.jsonl")
        self.refused(self.resume(run), run, "restore one of them", code=1)
        self.assertEqual(content(f"{run}/metrics.jsonl"), before)
        self.assertEqual(sorted(os.listdir(f"{run}/checkpoints"))[-2:], ["step-00000002", "step-00000004"])

    def test_another_model_cannot_resume(self):
        run = self.copy(self.run_folder)
        for settings, *says in [({"model.d_model": 64}, "d_model 32", "64"), ({"model.heads": 4}, "heads 2", "4"),
                                ({"model.decoder_layers": 2}, "decoder_layers 1"), ({"optimizer.ema_decay": 0.9}, "average")]:
            self.refused(self.resume(run, settings), "step-00000004", *says, "new folder")
        one = [self.file("one.en", "hello\n"), self.file("one.pt", "ola\n")]
        self.refused(self.resume(run, train=one), "one.en: it was", "--init-from")
        shutil.rmtree(f"{run}/data")
        self.refused(self.resume(run, {"data.vocab_size": 150}), "step-00000004")
        run = self.copy(self.run_folder)
        self.assertEqual(self.resume(run, {"model.dropout": 0.3}).returncode, 0)

    def test_files_of_a_run_folder(self):
        run = self.copy(self.run_folder)
        cut(f"{run}/data/target.spm")
        self.refused(self.resume(run), f"{run}/data/target.spm", "again")
        run = self.copy(self.run_folder)
        cut(f"{run}/data/train.tokens")  # is made again
        self.assertEqual(self.resume(run).returncode, 0)
        run = self.copy(self.run_folder)
        noise = random.Random(3).randbytes(300)
        write(f"{run}/metrics.jsonl", noise + b"\n")
        self.refused(self.resume(run), "metrics.jsonl:1", "restore")
        self.assertEqual(content(f"{run}/metrics.jsonl"), noise + b"\n")

    def test_folders_in_use(self):
        again = self.saturate(*self.train_command(self.run_folder, self.pair))
        self.refused(again, "already holds a run", "--resume")
        live = f"{self.root}/live"
        run = subprocess.Popen([PROGRAM, *map(str, self.train_command(live, self.pair, {"train.max_steps": 10**9})), "--quiet"],
                               stderr=subprocess.DEVNULL)
        try:
            for _ in range(300):
                if os.path.exists(f"{live}/metrics.jsonl"):
                    break
                time.sleep(0.05)
            for extra in [[], ["--resume"]]:
                second = self.saturate(*self.train_command(live, self.pair, extra=extra))
                self.refused(second, live, f"process {run.pid}", "another folder")
        finally:
            run.send_signal(signal.SIGTERM)
            self.assertEqual(run.wait(timeout=60), 130)

    def test_folders_that_cannot_be_written(self):
        file = self.file("file", "precious")
        for out in [file, f"{file}/below", "/proc/nothing"]:
            self.refused(self.saturate(*self.train_command(out, self.pair)), out, "choose a folder", code=1)
        self.assertEqual(content(file), b"precious")

    def test_full_disk_leaves_the_last_checkpoint(self):
        # No file may grow beyond the limit: what a full disk does, without needing one.
        limit = lambda size: lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        done = self.saturate(*self.train_command(f"{self.root}/out", self.pair), preexec_fn=limit(50_000))
        self.refused(done, "source.spm", "ulimit -f", code=1)
        run = self.copy(self.run_folder)
        line = self.train_command(run, self.pair, {"train.max_steps": 6}, ["--resume"])
        done = self.saturate(*line, preexec_fn=limit(300_000))
        self.refused(done, "step 6 is not saved", "Earlier checkpoints are intact", code=1)
        self.assertIn("at step 4", self.resume(run).stderr)

    def test_full_disk_in_mid_run_costs_a_checkpoint_and_not_the_run(self):
        run = self.copy(self.run_folder)
        line = self.train_command(run, self.pair, {"train.max_steps": 10**9, "checkpoint.every_steps": 40}, ["--resume"])
        # The soft limit only, so that this process may lift it again while the run goes on.
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        process = subprocess.Popen([PROGRAM, *map(str, line)], stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        try:
            said = ""
            while "step 80 is not saved" not in said:  # tried at 40 and, after that failed, again at 80
                said = process.stderr.readline()
                self.assertNotEqual(said, "")
                if "is not saved" in said:
                    self.assertRegex(said, "^saturate: warning: .*step (40|80) is not saved.*safetensors.*ulimit -f"
                                           ".*Earlier checkpoints are intact.*Training goes on")
            self.assertIn("step-00000004", os.listdir(f"{run}/checkpoints"))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            with open(os.devnull, "w") as sink:  # keep the pipe empty
                threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sink), daemon=True).start()
                for _ in range(600):
                    saved = [name for name in os.listdir(f"{run}/checkpoints") if name > "step-00000080"]
                    if saved:
                        break
                    time.sleep(0.05)
                self.assertTrue(saved)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(timeout=60), 130)
        finally:
            process.kill()
        steps = [json.loads(line)["step"] for line in content(f"{run}/metrics.jsonl").splitlines()]
        self.assertEqual(steps, sorted(steps))
        self.assertIn("resumed from", self.resume(run, {"train.max_steps": steps[-1] + 2}).stderr)

    def test_a_resumed_run_says_what_changed(self):
        run = self.copy(self.run_folder)
        done = self.resume(run, {"train.max_steps": 5, "optimizer.lr": 0.0123})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"settings that changed .*optimizer\.lr 0\.0123 \(was ")
        done = self.resume(run, {"train.max_steps": 5, "optimizer.lr": 0.0123})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("settings that changed", done.stderr)

    def test_ends_without_validation_and_by_patience(self):
        valid = ["--valid", f"{self.data}/valid.en", f"{self.data}/valid.pt"]
        done = self.trained(self.pair, {"validate.every_steps": 1000}, valid, out="short")
        self.assertIn("valid at step 2", done.stderr)
        done = self.trained(self.pair, {"validate.every_steps": 1, "validate.patience": 1, "optimizer.lr": 0,
                                        "train.max_steps": 50}, valid, out="patient")
        self.assertNotIn("step 50", done.stderr)
        with open(f"{self.root}/patient/metrics.jsonl", encoding="utf8") as file:
            self.assertEqual(json.loads(file.readlines()[-1])["status"], "stopped early")
        self.trained(self.pair, {"train.max_steps": 0, "train.max_epochs": 1}, out="epoch")


class Models(BadInput):
    """Folders without manifest.json, as others make them, so that the readers themselves are asked."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.remove(f"{cls.run_folder}/model/manifest.json")

    def translate(self, model, stdin="hello\n", *args, **more):
        return self.saturate("translate", "--model", model, "--device", "cpu", "--quiet", *args, stdin=stdin, **more)

    def test_folders_without_a_model(self):
        self.refused(self.translate(f"{self.root}/no"), f"{self.root}/no", "does not exist", code=1)
        self.refused(self.translate(self.root), self.root, "holds no model", code=1)
        self.refused(self.translate(self.pair[0]), "holds no model", code=1)
        self.refused(self.translate(f"{self.base}/lm"), "saturate generate")
        self.refused(self.saturate("generate", "--model", self.run_folder, "--prompt", "a"), "saturate translate")
        self.refused(self.saturate("eval", "--model", f"{self.base}/lm", "--test", *self.pair), "language model")

    def test_damaged_files(self):
        good = f"{self.run_folder}/model"
        for name in ["model.safetensors", "config.json", "source.spm", "target.spm", "vocab.json", "generation_config.json"]:
            for damage in [cut, lambda path: write(path, random.Random(4).randbytes(5000)), lambda path: write(path, "")]:
                model = self.copy(good)
                damage(f"{model}/{name}")
                self.refused(self.translate(model), f"{model}/{name}")
        model = self.copy(good)
        os.remove(f"{model}/target.spm")
        self.refused(self.translate(model), "has no tokenizer", "target.spm")

    def test_claims_are_not_believed(self):
        good = f"{self.run_folder}/model"
        # Sanitizers reserve terabytes of addresses for themselves.
        sanitized = any(name in content(PROGRAM) for name in [b"__asan_init", b"__tsan_init"])
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        for change in [{"vocab_size": 10**9}, {"d_model": 2**40}, {"max_position_embeddings": 2**24}, {"encoder_layers": 1000},
                       {"d_model": 65536, "encoder_ffn_dim": 1 << 20, "decoder_ffn_dim": 1 << 20, "encoder_layers": 1024,
                        "decoder_layers": 1024}]:
            model = self.copy(good)
            edit_json(f"{model}/config.json", **change)
            self.refused(self.translate(model, preexec_fn=None if sanitized else limit), model)
        tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        for header in [safetensors({"a": tensor | {"shape": [1 << 60, 1 << 60]}}, b"\0" * 8),
                       safetensors({"a": tensor | {"data_offsets": [0, 1 << 62]}}, b"\0" * 8),
                       safetensors({"a": tensor | {"data_offsets": [8, 0]}}, b"\0" * 8),
                       safetensors({"a": tensor, "b": tensor}, b"\0" * 8), safetensors({"a": tensor}, b"\0" * 8),
                       safetensors(b"[" * 500_000), safetensors(b'{"a":{'), struct.pack("<Q", 2**63) + b"{}"]:
            write(f"{self.copy(good)}/model.safetensors", header)
            self.refused(self.translate(f"{self.root}/copy"), f"{self.root}/copy")

    def test_vocabulary_of_another_model(self):
        self.trained(self.pair, {"data.vocab_size": 150})
        model = self.copy(f"{self.run_folder}/model")
        for name in ["source.spm", "target.spm", "vocab.json"]:
            shutil.copy(f"{self.root}/out/model/{name}", model)
        self.refused(self.translate(model), model, "vocabulary of 200", "150")

    def test_every_line_gets_one_line(self):
        long = "a" * 100_000
        for text in ["hello\n\n   \nseven\n", f"{long}\nhi\n", "a\nb", "\r\n\r\n", "\u3000\n\n"]:
            done = self.translate(self.run_folder, text)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines, out = text.split("\n"), done.stdout.split("\n")
            lines = lines[:-1] if not lines[-1] else lines
            self.assertEqual(len(out) - 1, len(lines))
            for source, line in zip(lines, out):
                if not source.strip():
                    self.assertEqual(line, "")
        self.assertIn("line 1 has", self.translate(self.run_folder, f"{long}\n").stderr)
        self.trained(self.pair, {"data.tokenizer_type": "byte"}, out="bytes")
        self.assertEqual(self.translate(f"{self.root}/bytes", "a\n\nb\n").stdout.count("\n"), 3)

    def test_nothing_to_translate_is_nothing(self):
        empty, out = self.file("empty", ""), f"{self.root}/out"
        for done in [self.translate(self.run_folder, b""), self.translate(self.run_folder, None, "--input", empty),
                     self.translate(self.run_folder, None, "--input", empty, "--output", out)]:
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(content(out), b"")

    def test_generate_takes_standard_input(self):
        def generate(*args, stdin=b""):
            done = self.saturate("generate", "--model", f"{self.base}/lm", "--temperature", "0", "--max-tokens", "4",
                                 "--quiet", *args, stdin=stdin)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout
        given = generate("--prompt", "um gato", stdin=b"not read")
        self.assertTrue(given.startswith("um gato"))
        self.assertEqual(generate(stdin=b"um gato\n"), given)
        self.assertEqual(generate("--prompt", "-", stdin=b"\xef\xbb\xbfum gato"), given)
        self.assertEqual(generate(), generate("--prompt", ""))
        bad = self.saturate("generate", "--model", f"{self.base}/lm", stdin=b"a\ncaf\xe9")
        self.refused(bad, "<standard input>:2:", "UTF-8")

    def test_bad_text_to_translate(self):
        for text, *says in [(b"a\n\xff\n", ":2: "), (b"a\0", ":1: "), (b"x" * 10_000_000, ":1: ")]:
            self.refused(self.translate(self.run_folder, text), "<standard input>", *says)
        self.refused(self.saturate("generate", "--model", f"{self.base}/lm", "--prompt", b"caf\xe9".decode(errors="surrogateescape")),
                     "--prompt", "UTF-8")
        self.refused(self.saturate("generate", "--model", f"{self.base}/lm", "--prompt", "seven " * 200), "shorten the prompt")

    def test_text_in_another_encoding(self):
        central = self.file("latin2", "hello\nžába\n".encode("iso-8859-2"))
        says = f"{central}:2: ", "iconv -f ISO-8859-2 -t UTF-8"
        self.refused(self.translate(self.run_folder, "", "--input", central), *says)
        self.refused(self.saturate("eval", "--hyp", central, "--ref", central), *says)
        self.refused(self.saturate("eval", "--model", self.run_folder, "--test", central, central), *says)

    def test_what_was_in_the_output_file_stays_until_the_end(self):
        precious = self.file("out.txt", "precious\n")
        bad = self.file("bad", b"a\n\xff\n")
        self.refused(self.translate(self.run_folder, "", "--input", bad, "--output", precious), f"{bad}:2: ")
        self.refused(self.translate(self.run_folder, "", "--input", f"{self.root}/no", "--output", precious), code=1)
        self.assertEqual(content(precious), b"precious\n")
        self.assertEqual(sorted(os.listdir(self.root)), ["bad", "out.txt"])
        many = self.file("many", b"a\n" * 5000 + b"\xff\n")
        done = self.translate(self.run_folder, "", "--input", many, "--output", precious, "--beam", "1")
        self.refused(done, f"{many}:5001: ")
        self.assertEqual(content(precious), b"precious\n")
        if os.path.exists(f"{precious}.part"):
            self.assertIn(f"{precious}.part", done.stderr)
        same = self.file("same", "hello\nseven\n")
        self.assertEqual(self.translate(self.run_folder, "", "--input", same, "--output", same).returncode, 0)
        self.assertEqual(content(same).count(b"\n"), 2)
        self.assertFalse(os.path.exists(f"{same}.part"))

    def test_output_that_cannot_be_written(self):
        text = self.file("text", "hello\n")
        self.refused(self.translate(self.run_folder, "", "--input", text, "--output", "/dev/full"), "/dev/full", "No space",
                     code=1)
        self.refused(self.translate(self.run_folder, "", "--input", text, "--output", f"{self.root}/no/x"), "no/x",
                     "No such file", code=1)
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "translate", "--model", self.run_folder, "--input", text, "--quiet"],
                                  stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"standard output cannot be written", done.stderr)

    def test_eval_needs_pairs(self):
        two, three = self.file("two", "a\nb\n"), self.file("three", "a\nb\nc\n")
        self.refused(self.saturate("eval", "--hyp", two, "--ref", three), two, three, "2 lines", "has 3")
        self.refused(self.saturate("eval", "--model", self.run_folder, "--test", two, three), two, three, "has 3")
        self.refused(self.saturate("eval", "--model", self.run_folder, "--test", two), "--test")
        self.refused(self.saturate("eval", "--hyp", self.file("empty", ""), "--ref", two), "is empty")
        self.refused(self.saturate("eval", "--hyp", f"{self.root}/no", "--ref", two), f"{self.root}/no", code=1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
