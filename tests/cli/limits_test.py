# SPDX-License-Identifier: Apache-2.0
"""Hostile limits and hostile files: usage: limits_test.py PATH_OF_SATURATE

Whatever the limits are (ulimit -v, -s, -n, -u, -f) and however deep a file is nested, a command is done (0), or ends
with 1 or 2 and one line that says why: no signal, no abort, no hang.
"""
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
LIMIT_S = 60  # under a second on an idle machine

SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
    "model.decoder_layers": 1, "data.vocab_size": 200, "batch.target_tokens": 256, "validate.every_steps": 0,
    "validate.metric": "loss", "checkpoint.every_minutes": 0, "train.max_steps": 2, "train.device": "cpu",
}


def sanitized():
    """Sanitizers reserve terabytes of address space and need more stack."""
    with open(PROGRAM, "rb") as file:
        return b"__asan_init" in (content := file.read()) or b"__tsan_init" in content


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        os.chmod(cls.base, 0o777)
        subprocess.run([PROGRAM, "quickstart-data", "--out", f"{cls.base}/data", "--pairs", "300", "--held-out", "20"],
                       check=True, capture_output=True)
        cls.pair = [f"{cls.base}/data/train.en", f"{cls.base}/data/train.pt"]
        cls.model = f"{cls.base}/run"
        done = cls.run_with({}, cls.train(cls.model))
        assert done.returncode == 0, done.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    @classmethod
    def train(cls, out):
        line = ["train", "--out", out, "--train", *cls.pair]
        for key, value in SMALL.items():
            line += ["--set", f"{key}={value}"]
        return line

    @staticmethod
    def run_with(limits, args, user=None, stdin="hello\n"):
        def restrict():
            for what, value in limits.items():
                resource.setrlimit(what, (value, value))
        try:
            return subprocess.run([PROGRAM, *args], input=stdin, capture_output=True, text=True, errors="replace",
                                  timeout=LIMIT_S, preexec_fn=restrict, user=user, group=user, check=False)
        except subprocess.TimeoutExpired as hang:
            raise AssertionError(f"{args[0]} hangs under {limits}") from hang

    def ends_well(self, limits, args, *says, **more):
        done = self.run_with(limits, args, **more)
        note = (limits, args[:1], done.returncode, done.stderr[-400:])
        if done.returncode == 127:
            self.assertIn("error while loading shared libraries", done.stderr, note)  # before the program begins
            return done
        self.assertIn(done.returncode, (0, 1, 2), note)
        if done.returncode != 0:
            self.assertTrue(done.stderr.splitlines()[-1].startswith("saturate: "), note)
        for text in says:
            self.assertIn(text, done.stderr, note)
        return done

    @classmethod
    def loadable_kib(cls):
        """The least address space in which the program can be loaded: with CUDA's libraries ten times as much as without.
        Below it the loader or the kernel ends the process before its first line."""
        least, most = 1_000, 64_000_000
        while most - least > 1_000:
            middle = (least + most) // 2
            if cls.run_with({resource.RLIMIT_AS: middle * 1024}, ["--version"]).returncode == 0:
                most = middle
            else:
                least = middle
        return most

    def fresh(self):
        return tempfile.mkdtemp(dir=self.base) + "/out"


@unittest.skipIf(sanitized(), "the program is built with a sanitizer")
class Limits(Hostile):
    def test_memory(self):
        # From just enough to load the program to enough for all; in between some commands fail and some do not.
        loadable = self.loadable_kib()
        for more in (0, 10_000, 20_000, 40_000, 70_000, 120_000, 150_000, 220_000, 420_000, 720_000, 920_000):
            limits = {resource.RLIMIT_AS: (loadable + more) * 1024}
            self.ends_well(limits, ["--version"])
            self.ends_well(limits, self.train(self.fresh()))  # threads take their memory in another order each time
            self.ends_well(limits, self.train(self.fresh()))
            self.ends_well(limits, ["translate", "--model", self.model, "--device", "cpu"])
        for more in (20_000, 70_000, 220_000):
            limits = {resource.RLIMIT_AS: (loadable + more) * 1024}
            self.ends_well(limits, ["info"])
            self.ends_well(limits, ["bench", "gemm", "--shape", "256", "256", "256", "--device", "cpu", "--repeats", "1"])

    def test_the_remedy_is_named(self):
        # Threads and their arenas alone take more, with OpenBLAS loaded or not.
        done = self.ends_well({resource.RLIMIT_AS: (self.loadable_kib() + 100_000) * 1024}, self.train(self.fresh()))
        self.assertEqual(done.returncode, 1)
        self.assertIn("ulimit -v", done.stderr)

    def test_stack(self):
        for kib, code in ((64, 1), (256, 1), (1024, 0)):
            done = self.ends_well({resource.RLIMIT_STACK: kib * 1024}, self.train(self.fresh()),
                                  *(["ulimit -s 8192"] if code else []))
            self.assertEqual(done.returncode, code, done.stderr)

    def test_open_files(self):
        for number, code in ((8, 1), (16, 1), (64, 0)):
            done = self.ends_well({resource.RLIMIT_NOFILE: number}, self.train(self.fresh()),
                                  *(["open files", "ulimit -n 1024"] if code else []))
            self.assertEqual(done.returncode, code, done.stderr)

    def test_size_of_files(self):
        for kib in (1, 100, 1000):
            done = self.ends_well({resource.RLIMIT_FSIZE: kib * 1024}, self.train(self.fresh()))
            if done.returncode:
                self.assertIn("File too large", done.stderr)
                self.assertNotIn("free some space", done.stderr)

    def test_processes(self):
        user = 47110 if os.getuid() == 0 else None  # root has no such limit
        for number in (1, 2, 3, 6):
            folder = self.fresh()
            os.chmod(os.path.dirname(folder), 0o777)
            done = self.ends_well({resource.RLIMIT_NPROC: number}, self.train(folder), user=user)
            if done.returncode:
                self.assertIn("ulimit -u", done.stderr)


class Depth(Hostile):
    def refused(self, args, *says):
        done = self.ends_well({}, args, *says)
        self.assertNotEqual(done.returncode, 0)
        self.assertLess(len(done.stderr), 2000)

    def file(self, name, text):
        path = os.path.join(tempfile.mkdtemp(dir=self.base), name)
        with open(path, "w", encoding="utf8") as file:
            file.write(text)
        return path

    def test_configurations(self):
        n = 50_000
        for text, *says in [("a" + ".a" * n + " = 1\n", ":1:", "dots"), ("[" + "a." * n + "a]\nb = 1\n", ":1:", "dots"),
                            ("\n\n[[" + "a ." * n + "a]]\n", ":3:", "dots"), ("x = {" + "a." * n + "a = 1}\n", ":1:", "dots"),
                            ('"a"' + '."a"' * n + " = 1\n", ":1:", "dots"), ("a = " + "[" * n, ":1:"),
                            ("a = " + "{a=" * n, ":1:"), ("a" * 900_000 + " = 1\n", "unknown key")]:
            self.refused(["train", "--config", self.file("run.toml", text), "--train", "a", "b"], *says)
        dots = self.file("dots.toml", 'out = "' + "." * 90 + '"\n# ' + "." * 90 + "\n[data]\ntrain = ['''\n" + "." * 90 + "''']\n")
        self.assertEqual(self.ends_well({}, ["train", "--config", dots, "--print-config"]).returncode, 0)

    def test_models_and_runs(self):
        arrays, objects = "[" * 1_000_000, '{"a":' * 300_000 + "1" + "}" * 300_000
        model = f"{self.model}/model"
        for name in sorted(os.listdir(model)):
            if not name.endswith(".json"):
                continue
            for text in (arrays, objects):
                copy = shutil.copytree(model, self.fresh())
                with open(f"{copy}/{name}", "w", encoding="utf8") as file:
                    file.write(text)
                self.ends_well({}, ["translate", "--model", copy, "--device", "cpu"])
        run = shutil.copytree(self.model, self.fresh())
        for name in ("metrics.jsonl", "gemm_table.json"):
            for text in (arrays, objects):
                with open(f"{run}/{name}", "w", encoding="utf8") as file:
                    file.write(text + "\n")
                self.ends_well({}, [*self.train(run), "--resume", "--set", "train.max_steps=3"])

    def test_corpora_and_traces(self):
        for text in ("[" * 500_000 + "]" * 500_000 + "\n", '{"source":' * 90_000 + "1" + "}" * 90_000 + "\n"):
            self.refused(["train", "--train", self.file("a.jsonl", text), "--out", self.fresh()], "a.jsonl:1:")
        for text in ("[" * 1_000_000, '{"traceEvents":' * 300_000, '{"traceEvents":[{"args":' + '{"a":' * 300_000):
            self.refused(["doctor", self.file("trace.json", text)], "trace.json")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
