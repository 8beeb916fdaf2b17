# SPDX-License-Identifier: Apache-2.0
"""What a run writes is right and survives: usage: storage_test.py PATH_OF_SATURATE

A model that is not finite is never kept, damage is seen, and model/ is at all times what the run calls its best.
"""
import fcntl
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

PROGRAM = sys.argv[1]

SMALL = {
    "model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.decoder_layers": 1,
    "data.vocab_size": 200, "batch.target_tokens": 256, "validate.every_steps": 3, "validate.metric": "loss",
    "checkpoint.every_minutes": 0, "checkpoint.every_steps": 3, "train.max_steps": 9, "train.log_every": 1, "train.device": "cpu",
}
HELD = {"optimizer.lr": 0}  # no validation is better than the one before
LARGE = 3e38  # a finite number, but not what is computed from it


def content(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def flip(path, at):
    data = bytearray(content(path))
    data[at % len(data)] ^= 1 << at % 8
    write(path, data)


def set_weights(path, value):
    """Every weight of a safetensors file becomes `value`; moments and what must be zero stay."""
    data = bytearray(content(path))
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    for name, tensor in json.loads(data[8:begin]).items():
        if name.startswith(("__", "final_logits_bias", "m/", "v/")):
            continue
        first, last = (begin + offset for offset in tensor["data_offsets"])
        data[first:last] = struct.pack("<f", value) * ((last - first) // 4)
    write(path, bytes(data))


class Storage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        subprocess.run([PROGRAM, "quickstart-data", "--out", f"{cls.base}/data", "--pairs", "300", "--held-out", "20"],
                       check=True, capture_output=True)
        cls.good = f"{cls.base}/good"  # best at step 9, checkpoints of steps 6 and 9
        done = cls.train(cls.good)
        assert done.returncode == 0, done.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.root = tempfile.mkdtemp(dir=self.base)

    @classmethod
    def command(cls, out, settings=None, resume=False):
        data = f"{cls.base}/data"
        line = [PROGRAM, "train", "--out", out, "--train", f"{data}/train.en", f"{data}/train.pt",
                "--valid", f"{data}/valid.en", f"{data}/valid.pt"] + ["--resume"] * resume
        for key, value in (SMALL | (settings or {})).items():
            line += ["--set", f"{key}={value}"]
        return line

    @classmethod
    def train(cls, out, settings=None, resume=False, **more):
        return subprocess.run(cls.command(out, settings, resume), capture_output=True, text=True, timeout=200, **more)

    def trained(self, out, settings=None, resume=False):
        done = self.train(out, settings, resume)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def translate(self, model):
        return subprocess.run([PROGRAM, "translate", "--model", model, "--device", "cpu", "--quiet"], input="hello\nsea\n",
                              capture_output=True, text=True, timeout=100)

    def refused(self, done, *says):
        self.assertEqual(done.returncode, 2, done.stderr + done.stdout)
        for text in says:
            self.assertIn(text, done.stderr.splitlines()[-1])

    def copy(self, of=None, name="copy"):
        path = f"{self.root}/{name}"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(of or self.good, path)
        return path

    def edit_checkpoint(self, folder, weights=None, **state):
        """Changes a checkpoint and takes what was changed out of its manifest."""
        write(f"{folder}/training/state.json",
              json.dumps(json.loads(content(f"{folder}/training/state.json")) | state).encode())
        if weights is not None:
            set_weights(f"{folder}/training/optimizer.safetensors", weights)
        manifest = json.loads(content(f"{folder}/manifest.json"))
        for name in ["state.json", "optimizer.safetensors"]:
            del manifest["files"][f"training/{name}"]
        write(f"{folder}/manifest.json", json.dumps(manifest).encode())

    def state(self, run, step):
        return json.loads(content(f"{run}/checkpoints/step-{step:08d}/training/state.json"))

    def same_model(self, run, step):
        """model/ is the kept model of a step, or that of its checkpoint, byte for byte."""
        saved = f"{run}/checkpoints/best-{step:08d}"
        if not os.path.exists(saved):
            saved = f"{run}/checkpoints/step-{step:08d}"
        for name in os.listdir(f"{run}/model"):
            if name != "manifest.json":
                self.assertEqual(content(f"{run}/model/{name}"), content(f"{saved}/{name}"), name)
        self.assertEqual(json.loads(content(f"{run}/model/manifest.json"))["step"], step)

    def await_steps(self, run, steps):
        for _ in range(1200):
            if os.path.exists(f"{run}/metrics.jsonl") and content(f"{run}/metrics.jsonl").count(b'"train"') >= steps:
                return
            time.sleep(0.05)
        self.fail("no progress within 60 s")


class Finite(Storage):
    # Gradients of weights that are too large are no numbers, so every step leaves them as they are.
    GOES_ON = {"train.stop_after_bad_steps": 10**6, "train.max_steps": 100, "validate.every_steps": 1,
               "validate.patience": 4}

    def test_a_score_that_is_no_number_is_never_the_best(self):
        for metric in ["loss", "bleu"]:
            run = self.copy()
            self.edit_checkpoint(f"{run}/checkpoints/step-00000009", LARGE, best_score=0.0 if metric == "bleu" else -9.0)
            done = self.train(run, self.GOES_ON | {"validate.metric": metric}, resume=True)
            said = [line for line in done.stderr.splitlines() if "valid at" in line]
            self.assertEqual(len(said), 4, done.stderr)  # then patience is over
            for line in said:
                self.assertRegex(line, "loss -?(nan|inf).*not finite: never the best")
                self.assertNotIn("(best)", line)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(content(f"{run}/metrics.jsonl").splitlines()[-1])["status"], "stopped early")
            self.same_model(run, 9)
            self.assertEqual(content(f"{run}/checkpoints/best"), b"best-00000009\n")
            self.assertEqual(self.translate(run).returncode, 0)

    def test_a_run_without_a_finite_score_leaves_no_model(self):
        run = self.copy()
        shutil.rmtree(f"{run}/model")
        self.edit_checkpoint(f"{run}/checkpoints/step-00000009", LARGE, best_step=-1)
        self.refused(self.train(run, self.GOES_ON, resume=True), "no validation had a finite score (4 in a row)", "optimizer.lr")
        self.assertFalse(os.path.exists(f"{run}/model"))
        self.assertIn(b"stopped early", content(f"{run}/report.html"))

    def test_weights_that_are_no_numbers_are_never_saved_nor_resumed(self):
        run = self.copy()
        self.edit_checkpoint(f"{run}/checkpoints/step-00000009", float("nan"))
        done = self.train(run, self.GOES_ON, resume=True)
        self.refused(done, "step-00000009", "the weights are not finite", "remove this checkpoint")

    def test_weights_that_are_no_numbers_are_refused(self):
        for value, says in [(float("nan"), "holds nan"), (float("-inf"), "holds -inf"),
                            (LARGE, "scores are not finite")]:
            model = self.copy(f"{self.good}/model")
            os.remove(f"{model}/manifest.json")
            set_weights(f"{model}/model.safetensors", value)
            done = self.translate(model)
            self.refused(done, says)
            self.assertEqual(done.stdout, "")
            data = f"{self.base}/data"
            done = subprocess.run([PROGRAM, "eval", "--model", model, "--device", "cpu", "--test", f"{data}/valid.en",
                                   f"{data}/valid.pt"], capture_output=True, text=True, timeout=100)
            self.refused(done, says)

    def test_generate_refuses_them_too(self):
        run = f"{self.root}/lm"
        data = f"{self.base}/data"
        line = [PROGRAM, "train", "--out", run, "--train", f"{data}/train.pt"]
        for key, value in (SMALL | {"model.preset": "gpt2-124m", "data.max_length": 32, "model.max_positions": 32,
                                    "train.max_steps": 2}).items():
            line += ["--set", f"{key}={value}"]
        subprocess.run(line, check=True, capture_output=True, timeout=200)
        generate = [PROGRAM, "generate", "--model", run, "--prompt", "o mar", "--max-tokens", "5", "--device", "cpu"]
        self.assertEqual(subprocess.run(generate, capture_output=True, timeout=60).returncode, 0)
        os.remove(f"{run}/model/manifest.json")
        for value, says in [(float("nan"), "holds nan"), (LARGE, "scores are not finite")]:
            set_weights(f"{run}/model/model.safetensors", value)
            self.refused(subprocess.run(generate, capture_output=True, text=True, timeout=60), says)


class Damage(Storage):
    def test_every_flipped_bit_and_cut_of_a_model_is_seen(self):
        numbers = random.Random(7)
        for name in sorted(os.listdir(f"{self.good}/model")):
            size = os.path.getsize(f"{self.good}/model/{name}")
            for damage in [lambda path: flip(path, numbers.randrange(size)), lambda path: os.truncate(path, size // 2)]:
                model = self.copy(f"{self.good}/model")
                damage(f"{model}/{name}")
                done = self.translate(model)
                if name == "manifest.json" and done.returncode == 0:
                    self.assertEqual(done.stdout, self.translate(self.good).stdout)  # the list was hit, no file
                    continue
                self.refused(done, name)
            if name not in ["manifest.json", "config.json"]:
                os.remove(f"{self.copy(f'{self.good}/model')}/{name}")
                self.refused(self.translate(f"{self.root}/copy"), f"{name} is missing")

    def test_an_edited_file_is_refused_with_the_way_out(self):
        model = self.copy(f"{self.good}/model")
        text = content(f"{model}/generation_config.json").replace(b'"num_beams": 5', b'"num_beams": 4')
        write(f"{model}/generation_config.json", text)
        done = self.translate(model)
        self.refused(done, f"{model}/generation_config.json", f"if the change is meant, remove {model}/manifest.json")
        os.remove(f"{model}/manifest.json")
        self.assertEqual(self.translate(model).returncode, 0)
        write(f"{model}/manifest.json", b'{"name": "of a web page", "icons": []}')  # of another kind
        self.assertEqual(self.translate(model).returncode, 0)

    def test_resume_makes_the_model_again(self):
        for damage in [lambda model: shutil.rmtree(model), lambda model: flip(f"{model}/model.safetensors", 9001),
                       lambda model: os.remove(f"{model}/source.spm"), lambda model: os.remove(f"{model}/manifest.json"),
                       lambda model: os.truncate(f"{model}/config.json", 10),
                       lambda model: (shutil.rmtree(model), os.symlink(model, model))]:
            run = self.copy()
            damage(f"{run}/model")
            done = self.trained(run, resume=True)
            self.assertRegex(done.stderr, "warning: .*/model .*the best is of step 9: written anew")
            self.same_model(run, 9)
        self.assertNotIn("anew", self.trained(self.copy(), resume=True).stderr)
        run = self.copy()  # the kept model is damaged too, but not the checkpoint of the same step
        for folder in ["model", "checkpoints/best-00000009"]:
            flip(f"{run}/{folder}/model.safetensors", 5000)
        self.assertIn("step-00000009", self.trained(run, resume=True).stderr)
        self.same_model(run, 9)

    def test_a_run_of_an_earlier_version_goes_on(self):
        # It marked a checkpoint as the best and wrote neither manifest.json in model/ nor folders of models.
        run = self.copy()
        os.remove(f"{run}/model/manifest.json")
        for name in ["best-00000006", "best-00000009"]:
            shutil.rmtree(f"{run}/checkpoints/{name}")
        write(f"{run}/checkpoints/best", b"step-00000009\n")
        shutil.copytree(f"{run}/model", f"{self.root}/was")
        self.trained(run, {"train.max_steps": 15, "checkpoint.keep_last": 1} | HELD, resume=True)
        self.assertEqual(sorted(os.listdir(f"{run}/checkpoints")), ["best", "best-00000009", "latest", "step-00000015"])
        self.same_model(run, 9)
        self.assertEqual(content(f"{run}/model/model.safetensors"), content(f"{self.root}/was/model.safetensors"))

    def test_the_model_of_a_step_that_was_lost_goes_with_it(self):
        # The newest checkpoint, the best, is damaged: the run goes on from step 6, and its best is of step 6 again.
        run = self.copy()
        flip(f"{run}/checkpoints/step-00000009/training/state.json", 3)
        done = self.trained(run, {"train.max_steps": 7, "validate.every_steps": 0} | HELD, resume=True)
        self.assertIn("is of step 9; the best is of step 6: written anew", done.stderr)
        self.same_model(run, 6)
        self.assertEqual(content(f"{run}/checkpoints/best"), b"best-00000006\n")
        self.assertIn("damaged-step-00000009", os.listdir(f"{run}/checkpoints"))

    def test_a_damaged_checkpoint_does_not_count_as_the_newest(self):
        run = self.copy()
        flip(f"{run}/checkpoints/step-00000009/training/state.json", 3)
        self.trained(run, {"train.max_steps": 8, "validate.every_steps": 0, "checkpoint.keep_last": 1} | HELD, resume=True)
        self.assertIn("at step 8", self.trained(run, {"train.max_steps": 8, "checkpoint.keep_last": 1}, resume=True).stderr)

    def test_a_best_that_is_gone_is_said_and_forgotten(self):
        run = self.copy()
        for damaged in ["model/config.json", "checkpoints/step-00000009/config.json"]:
            os.remove(f"{run}/{damaged}")
        self.assertFalse(os.path.exists(f"{run}/checkpoints/best-00000003"))  # no checkpoint names it any more
        self.edit_checkpoint(f"{run}/checkpoints/step-00000006", best_step=3)
        done = self.trained(run, {"train.max_steps": 8}, resume=True)
        self.assertRegex(done.stderr, "warning: .*of step 3, of which nothing whole is left: the next validation")
        self.assertIn("valid at step 8", done.stderr)
        self.same_model(run, 8)


class Best(Storage):
    def test_the_best_is_a_checkpoint_wherever_it_falls(self):
        run = f"{self.root}/run"
        self.trained(run, {"checkpoint.every_steps": 4, "train.max_steps": 11, "checkpoint.keep_last": 1} | HELD)
        saved = sorted(os.listdir(f"{run}/checkpoints"))
        best = content(f"{run}/checkpoints/best").decode().strip()
        self.assertEqual(saved, ["best", best, "latest", "step-00000011"])
        self.assertIn(int(best[5:]), [3, 6, 9])
        self.same_model(run, int(best[5:]))
        self.assertEqual(self.state(run, 11)["best_step"], int(best[5:]))
        self.assertEqual(self.translate(f"{run}/checkpoints/{best}").stdout, self.translate(run).stdout)

    def test_a_killed_run_ends_as_one_that_was_not(self):
        settings = {"checkpoint.every_steps": 10, "train.max_steps": 40, "validate.every_steps": 4}
        whole, killed = f"{self.root}/whole", f"{self.root}/killed"
        self.trained(whole, settings)
        run = subprocess.Popen(self.command(killed, settings | {"train.max_steps": 100000}), stderr=subprocess.DEVNULL)
        self.await_steps(killed, 14)
        run.kill()
        run.wait()
        self.trained(killed, settings | {"train.max_steps": 40}, resume=True)
        for name in ["model.safetensors", "config.json"]:
            self.assertEqual(content(f"{whole}/model/{name}"), content(f"{killed}/model/{name}"))
        self.assertEqual(content(f"{whole}/checkpoints/best"), content(f"{killed}/checkpoints/best"))
        for key in ["best_step", "best_score", "validations_without_gain"]:
            self.assertEqual(self.state(whole, 40)[key], self.state(killed, 40)[key], key)

    def test_without_validation_the_model_is_of_the_last_step(self):
        run = f"{self.root}/run"
        quiet = {"validate.every_steps": 0, "checkpoint.every_steps": 2}
        line = [word for word in self.command(run, quiet | {"train.max_steps": 2})]
        at = line.index("--valid")
        del line[at:at + 3]
        subprocess.run(line, check=True, capture_output=True)
        self.same_model(run, 2)
        line[line.index("train.max_steps=2")] = "train.max_steps=4"
        subprocess.run(line + ["--resume"], check=True, capture_output=True)
        self.same_model(run, 4)


class Disturbed(Storage):
    def test_names_in_the_checkpoints_that_are_none(self):
        for make in [lambda path: os.symlink(path, path), lambda path: os.symlink("/nowhere", path),
                     lambda path: write(path, b"x"), os.mkfifo]:
            run = self.copy()
            make(f"{run}/checkpoints/step-00000012")
            done = self.trained(run, {"train.max_steps": 12}, resume=True)
            self.assertIn("at step 9", done.stderr)
            self.assertTrue(os.path.isfile(f"{run}/checkpoints/step-00000012/manifest.json"))
        run = self.copy()
        os.symlink("best.json", f"{run}/checkpoints/step-00000009/best.json")  # within a checkpoint
        os.unlink(f"{run}/checkpoints/best")
        os.symlink("best", f"{run}/checkpoints/best")
        self.trained(run, {"train.max_steps": 12}, resume=True)

    def test_a_run_folder_that_is_deleted_or_moved(self):
        def delete(run):
            shutil.rmtree(run, ignore_errors=True)  # the run may write while it goes
            shutil.rmtree(run, ignore_errors=True)
        for remove, says in [(delete, r"/run was deleted or moved"),
                             (lambda run: os.rename(run, f"{run}-moved"), r"/run was deleted or moved"),
                             (lambda run: os.remove(f"{run}/metrics.jsonl"), r"metrics.jsonl was deleted or moved")]:
            run = f"{self.root}/run"
            shutil.rmtree(run, ignore_errors=True)
            process = subprocess.Popen(self.command(run, {"train.max_steps": 10**6, "checkpoint.every_steps": 20}),
                                       stderr=subprocess.PIPE, text=True)
            self.await_steps(run, 5)
            remove(run)
            time.sleep(0.5)
            self.await_steps(run, 3)
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 130, said)
            self.assertEqual(len(re.findall(f"warning: .*{says} while the run goes on; it is made again", said)), 1, said)
            self.assertEqual(self.translate(run).returncode, 0)
            steps = max(int(name[5:]) for name in os.listdir(f"{run}/checkpoints") if name.startswith("step-"))
            done = self.trained(run, {"train.max_steps": steps + 1}, resume=True)
            self.assertIn(f"at step {steps}", done.stderr)

    def test_the_space_that_a_checkpoint_needs_is_what_it_takes(self):
        run = self.copy()
        taken = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in
                    os.walk(f"{run}/checkpoints/step-00000009") for name in names)
        # A file size limit makes the save fail, and its message names what it had asked for.
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (taken // 3, taken // 3))
        done = self.train(run, {"train.max_steps": 10, "validate.every_steps": 0}, resume=True, preexec_fn=limit)
        asked = int(re.search(r"(\d+) bytes are needed in all", done.stderr).group(1))
        self.assertGreaterEqual(asked, taken)
        self.assertLess(asked, taken + 150_000)  # small files are not known to the byte

    def test_a_terminal_that_goes_away_saves_the_run(self):
        run = f"{self.root}/run"
        main, side = pty.openpty()
        process = subprocess.Popen(self.command(run, {"train.max_steps": 10**6}), stdin=side, stdout=side, stderr=side,
                                   start_new_session=True,
                                   preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(side)
        os.set_blocking(main, False)
        for _ in range(1200):
            try:
                os.read(main, 1 << 16)
            except BlockingIOError:
                pass
            if os.path.exists(f"{run}/metrics.jsonl") and content(f"{run}/metrics.jsonl").count(b'"train"') >= 5:
                break
            time.sleep(0.05)
        os.close(main)  # the kernel sends SIGHUP, and writing to the terminal fails from now on
        self.assertEqual(process.wait(timeout=60), 130)
        last = json.loads(content(f"{run}/metrics.jsonl").splitlines()[-1])
        self.assertEqual(last["status"], "interrupted by SIGHUP")
        self.assertTrue(os.path.exists(f"{run}/checkpoints/step-{last['step']:08d}/manifest.json"))

    def test_a_reader_that_goes_away_saves_the_run(self):
        run = f"{self.root}/run"
        process = subprocess.Popen(self.command(run, {"train.max_steps": 10**6}), stderr=subprocess.PIPE)
        self.await_steps(run, 5)
        process.stderr.close()
        self.assertEqual(process.wait(timeout=60), 130)
        self.assertIn(b"interrupted by SIGPIPE", content(f"{run}/metrics.jsonl").splitlines()[-1])

    def test_nohup_goes_on(self):
        run = f"{self.root}/run"
        process = subprocess.Popen(["nohup", *self.command(run, {"train.max_steps": 10**6})], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.await_steps(run, 3)
        process.send_signal(signal.SIGHUP)
        steps = content(f"{run}/metrics.jsonl").count(b'"train"')
        self.await_steps(run, steps + 5)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 130)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
