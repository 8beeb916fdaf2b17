# SPDX-License-Identifier: Apache-2.0
"""Several models as one behind HTTP, against what `saturate translate` makes of them: usage: ensemble_test.py PATH_OF_SATURATE

Skipped (77) where the program has no server.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

PROGRAM = os.path.abspath(sys.argv[1])
WAIT = 60  # seconds until something missing is a failure, on the slowest machine
SETTINGS = {"model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 1,
            "model.decoder_layers": 1, "data.vocab_size": 200, "batch.target_tokens": 512, "validate.every_steps": 0,
            "validate.metric": "loss", "optimizer.lr": 0.003, "train.max_steps": 60, "train.device": "cpu"}


def train(data, out, **changes):
    line = [PROGRAM, "train", "--out", out, "--train", f"{data}/train.en", f"{data}/train.pt"]
    for key, value in {**SETTINGS, **{k.replace("__", "."): v for k, v in changes.items()}}.items():
        line += ["--set", f"{key}={value}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Server:
    def __init__(self, *args):
        self.process = subprocess.Popen([PROGRAM, "serve", "--device", "cpu", "--port", "0", "--beam", "4", *args],
                                        stderr=subprocess.PIPE, text=True)
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"listening on (http://\S+:\d+)", line):
                break
        else:
            raise AssertionError("".join(self.said))
        self.url = found[1] + "/"
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr))
        self.reader.start()

    def ask(self, path, body=None, kind="application/json"):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return answer.read()

    def refused(self, path, body):
        try:
            return 200, self.ask(path, body)
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT)
        self.reader.join()
        self.process.stderr.close()
        return code


class Ensemble(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.base)
        data = f"{cls.base}/data"
        subprocess.run([PROGRAM, "quickstart-data", "--out", data, "--pairs", "600", "--held-out", "100"], check=True, capture_output=True)
        cls.a, cls.b = f"{cls.base}/a", f"{cls.base}/b,2"  # a comma, which a path that is there may have
        train(data, cls.a)
        train(data, cls.b, train__seed=2, model__decoder_layers=2, model__d_model=48, model__heads=4)
        train(data, f"{cls.base}/small", data__vocab_size=120, train__max_steps=1)
        os.symlink(cls.b, f"{cls.base}/b")
        with open(f"{data}/test.en", encoding="utf8") as file:
            cls.lines = file.read().splitlines() + ["It is seven. " * 20]
        with open(f"{cls.base}/text", "w", encoding="utf8") as file:
            file.writelines(line + "\n" for line in cls.lines)
        cls.server = Server("--model", f"both={cls.a},{cls.base}/b", "--model", f"a={cls.a}", "--model", cls.b, "--weights", "1.5,0.5")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.end()
        assert code == 0, cls.server.said

    def translate(self, *args):
        done = subprocess.run([PROGRAM, "translate", "--device", "cpu", "--beam", "4", "--input", f"{self.base}/text", *args],
                              capture_output=True, timeout=WAIT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_answers_are_those_of_translate_bit_for_bit(self):
        several = ["--model", self.a, "--model", self.b, "--weights", "1.5,0.5"]
        want = [json.loads(line)["translations"] for line in self.translate(*several, "--json", "--nbest", "3").splitlines()]
        found = json.loads(self.server.ask("v1/translate", {"model": "both", "texts": self.lines, "nbest": 3}))["translations"]
        self.assertEqual(len(found), len(want))
        for got, best in zip(found, want):
            # Doubles as both write them: the shortest text that reads back as the same number.
            self.assertEqual([(t["text"], t["score"], t["log_probability"]) for t in got["nbest"]],
                             [(t["text"], t["score"], t["log_probability"]) for t in best])
        text = self.server.ask("v1/translate?model=both", ("\n".join(self.lines) + "\n").encode(), "text/plain")
        self.assertEqual(text, self.translate(*several))
        alone = self.server.ask("v1/translate?model=a", ("\n".join(self.lines) + "\n").encode(), "text/plain")
        self.assertEqual(alone, self.translate("--model", self.a))
        self.assertNotEqual(text, alone)
        self.assertNotEqual(text, self.translate(*several[:4]))  # that the weights matter

    def test_clients_side_by_side_get_what_each_gets_alone(self):
        want = self.translate("--model", self.a, "--model", self.b, "--weights", "3,1").decode().splitlines()
        found = [None] * len(self.lines)

        def client(first):
            for i in range(first, len(self.lines), 6):
                answer = json.loads(self.server.ask("v1/translate", {"model": "both", "texts": [self.lines[i]]}))
                found[i] = answer["translations"][0]["text"]
        clients = [threading.Thread(target=client, args=[i]) for i in range(6)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        self.assertEqual(found, want)

    def test_the_list_says_what_is_one(self):
        models = {m["id"]: m for m in json.loads(self.server.ask("v1/models"))["data"]}
        self.assertEqual(sorted(models), ["a", "b,2", "both"])
        self.assertEqual(models["both"]["ensemble"], [{"id": "a", "weight": 0.75}, {"id": "b", "weight": 0.25}])
        self.assertEqual((models["both"]["source"], models["both"]["target"], models["both"]["kind"]), ("en", "pt", "translation"))
        self.assertNotIn("ensemble", models["a"])
        self.assertEqual(json.loads(self.server.ask("v1/models/both")), models["both"])
        self.assertIn("both: translation model 0.75 ", "".join(self.server.said))

    def test_memory_is_that_of_all(self):
        bytes_of = {name: float(value) for name, value in re.findall(
            r'^saturate_weight_bytes\{model="([^"]+)"\} (\S+)', self.server.ask("metrics").decode(), re.M)}
        self.assertEqual(bytes_of["both"], bytes_of["a"] + bytes_of["b,2"])
        parameters = 200 * 32 + 32 * 32 * 4 * 3 + 32 * 64 * 2 * 2  # of a: table, attention, feed-forward; and less of biases and norms
        self.assertLess(4 * parameters, bytes_of["a"])
        self.assertLess(bytes_of["a"], 4 * 2.2 * parameters)  # positions too, and the table is there twice: looked up, and packed

    def test_phrases_and_alternatives(self):
        body = {"model": "both", "texts": ["It is seven."], "phrases": [["oito"]]}
        self.assertIn("oito", json.loads(self.server.ask("v1/translate", body))["translations"][0]["text"])
        body = {"model": "both", "q": "It is seven.", "source": "en", "target": "pt", "alternatives": 2}
        self.assertEqual(len(json.loads(self.server.ask("translate", body))["alternatives"]), 2)
        self.assertEqual(self.server.refused("v1/translate", {"model": "none", "texts": ["a"]})[0], 404)

    def test_a_folder_that_changes_is_named(self):
        copy = f"{self.base}/copy"
        shutil.copytree(self.b, copy)
        server = Server("--model", f"both={self.a},{copy}")
        try:
            weights = f"{copy}/model/model.safetensors"
            os.utime(weights, ns=(os.stat(weights).st_atime_ns, os.stat(weights).st_mtime_ns + 10 ** 9))
            for _ in range(10 * WAIT):
                health = json.loads(server.ask("health"))
                if "changed_on_disk" in health:
                    break
                threading.Event().wait(0.1)
            self.assertEqual(health["changed_on_disk"], [{"model": "both", "change": "copy: model.safetensors was written again"}])
            self.assertEqual(health["status"], "ok")
        finally:
            self.assertEqual(server.end(), 0)

    def test_says_what_is_wrong(self):
        both = f"both={self.a},{self.base}/b"
        for args, reason in [
                (["--model", f"{self.a},{self.base}/b"], "need a name to be asked by; give NAME="),
                (["--model", f"both={self.a},"], "a folder is missing between commas"),
                (["--model", f"both={self.a},{self.base}/small"], "of the source vocabulary is"),
                (["--model", "both=" + ",".join([self.a] * 9)], "9 models are given; at most 8"),
                (["--model", both, "--weights", "1,2,3"], "3 weights for the 2 folders of both"),
                (["--model", both, "--weights", "1,x"], '"x" is no number from 1e-06 to 1e+06'),
                (["--model", both, "--weights", "1,-1"], '"-1" is no number'),
                (["--model", both, "--weights", "1,nan"], '"nan" is no number'),
                (["--model", both, "--weights", "a=1,2"], "no model of several folders is called a; there is both"),
                (["--model", self.a, "--weights", "1"], "does not say of which of 0 models of several folders it is"),
                (["--model", f"both={self.a},{self.base}/none"], "none does not exist"),
                (["--model", both, "--model", f"both={self.a}"], "two models or adapters are called both")]:
            done = subprocess.run([PROGRAM, "serve", "--device", "cpu", "--port", "0", *args], capture_output=True, text=True,
                                  timeout=WAIT, check=False)
            self.assertEqual(done.returncode, 1 if "exist" in reason else 2, done.stderr)
            self.assertIn(reason, done.stderr)


if __name__ == "__main__":
    if "libevent" in subprocess.run([PROGRAM, "serve", "--model", "/none"], capture_output=True, text=True, check=False).stderr:
        print("this program has no server: skipped")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
