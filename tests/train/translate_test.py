# SPDX-License-Identifier: Apache-2.0
"""Using a model from the command line, as it happens in time: usage: translate_test.py PATH_OF_SATURATE

Lines come out in order, each as soon as it is done; what is done outlives the process.
"""
import os
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
        settings = {"model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64,
                    "model.encoder_layers": 1, "model.decoder_layers": 1, "data.vocab_size": 200,
                    "batch.target_tokens": 512, "validate.every_steps": 0, "validate.metric": "loss",
                    "optimizer.lr": 0.003, "train.max_steps": 60, "train.device": "cpu"}
        line = [PROGRAM, "train", "--out", cls.model, "--train", f"{data}/train.en", f"{data}/train.pt"]
        for key, value in settings.items():
            line += ["--set", f"{key}={value}"]
        subprocess.run(line, check=True, capture_output=True)
        cls.text = f"{data}/test.en"
        with open(cls.text, "ab") as file:  # blank, short and long lines among the others
            file.write(b"\n" + b"It is seven. " * 30 + b"\nyes\n\n" + b"seven " * 60 + b"\n")
        cls.lines = content(cls.text).splitlines(True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.root = tempfile.mkdtemp(dir=self.base)

    def command(self, *args):
        return [PROGRAM, "translate", "--model", self.model, "--device", "cpu", "--beam", "2", *args]

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
