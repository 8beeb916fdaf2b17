# SPDX-License-Identifier: Apache-2.0
"""Runs that start from a model (--init-from), with and without frozen parameters.

usage: finetune_test.py PATH_OF_SATURATE [--device cuda] [--ranks N --launch COMMAND] [unittest's options]

COMMAND as in train_test.py.
"""
import argparse
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--device", default="cpu")
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--launch", default="")
OPTIONS, REST = parser.parse_known_args()

SHAPE = {"model.preset": "tiny", "model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.encoder_layers": 2,
         "model.decoder_layers": 1, "data.vocab_size": 200}
TRAINING = {"batch.target_tokens": 256, "optimizer.lr": 3e-3, "schedule.warmup_steps": 10,
            "validate.every_steps": 0, "validate.metric": "loss", "train.log_every": 1, "checkpoint.every_minutes": 0,
            "train.device": OPTIONS.device, "schedule.total_steps": 1000}


def tensors(path):
    """Name -> bytes of each tensor of a safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]
            for name, t in header.items()}


class FineTuning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        subprocess.run([OPTIONS.program, "quickstart-data", "--out", f"{cls.root}/data", "--pairs", "500"],
                       check=True, capture_output=True)
        cls.train(cls, "base", 12, init=None)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def train(self, out, steps, init="base", expect=0, launcher=(), resume=False, lm=False, **changes):
        data = f"{self.root}/data"
        settings = TRAINING | ({} if init or lm or resume else SHAPE) | {"train.max_steps": steps} | changes
        files = ["train.pt"] if lm else ["train.en", "train.pt"]
        line = [*launcher, OPTIONS.program, "train", "--train", *[f"{data}/{f}" for f in files], "--valid",
                *[f"{data}/{f.replace('train', 'valid')}" for f in files], "--out", f"{self.root}/{out}"]
        line += ["--init-from", init if "/" in init else f"{self.root}/{init}"] if init else []
        line += ["--resume"] if resume else []
        for key, value in settings.items():
            line += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        environment = os.environ | ({"ASAN_OPTIONS": "detect_leaks=0"} if launcher else {})
        done = subprocess.run(line, capture_output=True, text=True, timeout=250, env=environment)
        if done.returncode != expect:
            raise AssertionError(f"exit code {done.returncode}: {done.stderr}")
        return done

    def state(self, out, step):
        folder = f"{self.root}/{out}/checkpoints/step-{step:08d}"
        all_ = tensors(f"{folder}/training/optimizer.safetensors")
        with open(f"{folder}/config.json", encoding="utf8") as file:
            rows = json.load(file)["vocab_size"]
        # The rows that pad a vocabulary to a multiple of 64 belong to no piece, and no model folder holds them.
        return {name: value[:rows * 32 * 4] if name.endswith(("shared.weight", "embed.weight")) else value
                for name, value in all_.items()}

    def rows(self, out, kind):
        with open(f"{self.root}/{out}/metrics.jsonl", encoding="utf8") as file:
            return [row for row in map(json.loads, file) if row["kind"] == kind]

    def test_average_of_models(self):
        """`export --average` writes the mean that sums in double precision have, and refuses what is no such model."""
        for name, steps in [("mean1", 3), ("mean2", 5)]:
            self.train(name, steps)
        folders = [f"{self.root}/{name}" for name in ["base", "mean1", "mean2"]]

        def export(*args):
            return subprocess.run([OPTIONS.program, "export", *args], capture_output=True, text=True, timeout=100)

        done = export("--model", folders[0], "--average", *folders[1:], "--out", f"{self.root}/mean")
        self.assertEqual(done.returncode, 0, done.stderr)
        every = [tensors(f"{folder}/model/model.safetensors") for folder in folders]
        mean = tensors(f"{self.root}/mean/model.safetensors")
        self.assertEqual(sorted(mean), sorted(every[0]))
        for name, data in mean.items():
            parts = [struct.unpack(f"<{len(data) // 4}f", t[name]) for t in every]
            want = struct.pack(f"<{len(data) // 4}f", *[(a + b + c) / 3 for a, b, c in zip(*parts)])
            self.assertEqual(data, want, name)
        self.assertNotIn(mean["model.decoder.layers.0.fc1.weight"], [t["model.decoder.layers.0.fc1.weight"] for t in every])
        self.train("wider", 1, init=None, **{"model.ffn": 96})
        done = export("--model", folders[0], "--average", f"{self.root}/wider", "--out", f"{self.root}/none")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("differ in shape", done.stderr)

    def test_begins_with_the_weights_and_says_how_good_they_are(self):
        done = self.train("same", 1, **{"optimizer.lr": 0})
        base = {name: value for name, value in self.state("base", 12).items() if name.startswith("master/")}
        same = self.state("same", 1)
        for name, value in base.items():
            self.assertEqual(same[name], value, name)
        self.assertIn("valid at step 0:", done.stderr)
        start, end = self.rows("same", "valid")
        self.assertEqual((start["step"], end["step"]), (0, 1))
        self.assertEqual(start["loss"], self.rows("base", "valid")[-1]["loss"])
        self.assertEqual(end["loss"], start["loss"])

    def test_quantized_weights_begin_as_they_were_rounded_and_a_line_says_so(self):
        subprocess.run([OPTIONS.program, "quantize", "--model", f"{self.root}/base", "--out", f"{self.root}/base-int8"],
                       check=True, capture_output=True)
        done = self.train("from-int8", 1, init="base-int8")
        said = [line for line in done.stderr.splitlines() if "was quantized to 8 bits" in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertIn(f"{self.root}/base-int8", said[0])
        self.assertIn("give the folder that was quantized", said[0])
        rounded, whole = (self.rows(out, "valid")[at]["loss"] for out, at in [("from-int8", 0), ("base", -1)])
        self.assertNotEqual(rounded, whole)
        self.assertAlmostEqual(rounded, whole, delta=0.05)
        with open(f"{self.root}/from-int8/model/config.json", encoding="utf8") as file:
            self.assertNotIn("quantization_config", json.load(file))
        self.assertNotIn("was quantized", self.train("from-whole", 1).stderr)

    def test_moves_on_from_there(self):
        self.train("tuned", 30)
        rows = self.rows("tuned", "valid")
        self.assertLess(rows[-1]["loss"], rows[0]["loss"] - 0.2)
        steps = [row["step"] for row in self.rows("tuned", "train")]
        self.assertEqual(steps, list(range(1, 31)))  # schedule and counter start afresh
        with open(f"{self.root}/tuned/config.toml", encoding="utf8") as file:
            self.assertIn(f'from = "{self.root}/base"', file.read())
        with open(f"{self.root}/tuned/checkpoints/step-00000030/training/state.json", encoding="utf8") as file:
            state = json.load(file)
        self.assertEqual(state["started_from"], f"{self.root}/base")
        header = self.rows("tuned", "run")[0]["environment"]
        self.assertIn(state["initial_weights"], header["started from"])
        with open(f"{self.root}/tuned/report.html", encoding="utf8") as file:
            self.assertIn(state["initial_weights"], file.read())

    def test_resumes_bit_for_bit_without_the_folder(self):
        for freeze in ["", "encoder.*"]:
            name = "frozen" if freeze else "free"
            more = {"optimizer.freeze": freeze, "optimizer.ema_decay": 0.9, "model.dropout": 0.2,
                    "optimizer.weight_decay": 0.1, "batch.accumulate": 2}
            shutil.copytree(f"{self.root}/base", f"{self.root}/{name}-origin")
            self.train(f"{name}-whole", 20, init=f"{name}-origin", **more)
            self.train(f"{name}-parts", 8, init=f"{name}-origin", **more)
            shutil.rmtree(f"{self.root}/{name}-origin")
            self.train(f"{name}-parts", 14, init=f"{name}-origin", resume=True, **more)
            done = subprocess.run([OPTIONS.program, "train", "--resume", "--out", f"{self.root}/{name}-parts",
                                   "--steps", "20"], capture_output=True, text=True, timeout=250)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.state(f"{name}-whole", 20), self.state(f"{name}-parts", 20))

    def test_what_is_frozen_stays_to_the_last_bit(self):
        base = self.state("base", 12)
        for freeze in [["encoder.*", "*norm*"], ["shared.weight"], ["*.bias", "decoder.*", "shared.weight"]]:
            name = "kept-" + str(len(freeze))
            done = self.train(name, 5, **{"optimizer.freeze": ",".join(freeze), "optimizer.ema_decay": 0.9,
                                          "optimizer.weight_decay": 0.1})
            self.assertIn("trainable of", done.stderr)
            after = self.state(name, 5)
            kept = set()
            for key, value in base.items():
                array, parameter = key.split("/")
                if array != "master":
                    continue
                is_frozen = {"encoder.*": parameter.startswith("encoder."), "*norm*": "norm" in parameter,
                             "shared.weight": parameter == "shared.weight", "*.bias": parameter.endswith(".bias"),
                             "decoder.*": parameter.startswith("decoder.")}
                if any(is_frozen[pattern] for pattern in freeze):
                    kept.add(parameter)
                    self.assertEqual(after[key], value, key)
                    for other in ("average", "m", "v"):  # its average is itself, and it has no moments
                        self.assertNotIn(f"{other}/{parameter}", after)
                else:
                    self.assertNotEqual(after[key], value, key)
            self.assertTrue(kept)

    def test_a_frozen_gradient_does_not_change_the_others(self):
        # Without clipping the rest takes the step that it takes when all train.
        plain = {"optimizer.clip_norm": 0, "model.dropout": 0.1}
        self.train("all", 1, **plain)
        self.train("some", 1, **plain, **{"optimizer.freeze": "encoder.layers.0.*,shared.weight"})
        all_, some = self.state("all", 1), self.state("some", 1)
        for key in all_:
            frozen = key.split("/")[1].startswith("encoder.layers.0.") or key.endswith("/shared.weight")
            self.assertEqual(all_[key] == some.get(key), not frozen, key)  # frozen: no moments
        norms = [self.rows(run, "train")[0]["grad_norm"] for run in ("all", "some")]
        self.assertLess(norms[1], norms[0])

    def test_several_ranks_read_and_freeze_alike(self):
        if not OPTIONS.launch:
            self.skipTest("no --launch: this build or machine has one rank")
        launcher = shlex.split(OPTIONS.launch.format(ranks=OPTIONS.ranks))
        plain = {"model.dropout": 0, "optimizer.eps": 1e-4, "train.precision": "fp32",
                 "optimizer.freeze": "encoder.layers.1.*,decoder.layers.0.cross.*"}
        self.train("many", 6, launcher=launcher, **plain)
        self.train("alone", 6, **plain, **{"batch.accumulate": OPTIONS.ranks})
        many, alone = self.state("many", 6), self.state("alone", 6)
        for key in [k for k in alone if k.startswith("master/")]:
            count = len(alone[key]) // 4
            a, b = (struct.unpack(f"<{count}f", s[key]) for s in (alone, many))
            # As in train_test.py: gradients differ by 1e-6, and AdamW divides that by eps.
            self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 6 * 3e-3 * 1e-6 / 1e-4, key)
            if key.startswith("master/encoder.layers.1."):
                self.assertEqual(many[key], self.state("base", 12)[key])

    def test_a_vocabulary_with_ids_of_its_own(self):
        # As Marian's published models have it: vocab.json gives other ids than the SentencePiece model.
        folder = f"{self.root}/moved-ids"
        shutil.copytree(f"{self.root}/base/model", folder)
        os.remove(f"{folder}/manifest.json")
        with open(f"{folder}/vocab.json", encoding="utf8") as file:
            pieces = [piece for piece, _ in sorted(json.load(file).items(), key=lambda item: item[1])]
        order = [0, 1, *reversed(range(2, len(pieces) - 1)), len(pieces) - 1]  # </s>, <unk> and <pad> stay
        with open(f"{folder}/vocab.json", "w", encoding="utf8") as file:
            json.dump({pieces[old]: new for new, old in enumerate(order)}, file)
        with open(f"{folder}/model.safetensors", "r+b") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            begin, end = json.loads(file.read(size))["model.shared.weight"]["data_offsets"]
            row = (end - begin) // len(pieces)
            table = file.read(begin + end - begin)[begin:]
            file.seek(8 + size + begin)
            file.write(b"".join(table[old * row:(old + 1) * row] for old in order))
        self.train("moved", 2, init="moved-ids", **{"optimizer.lr": 0})
        base = self.rows("base", "valid")[-1]["loss"]
        for row in self.rows("moved", "valid"):  # the sums go in another order
            self.assertAlmostEqual(row["loss"], base, delta=1e-6 * base)
        self.train("moved", 4, init="moved-ids", resume=True)
        with open(f"{self.root}/moved/model/vocab.json", encoding="utf8") as file:
            self.assertEqual(json.load(file), {pieces[old]: new for new, old in enumerate(order)})

    def test_language_models_too(self):
        lm = {"model.preset": "gpt2-124m", "model.d_model": 32, "model.heads": 2, "model.decoder_layers": 2,
              "data.vocab_size": 200, "data.max_length": 64}
        self.train("lm", 8, init=None, lm=True, **lm)
        self.train("lm-tuned", 3, init="lm", lm=True, **{"optimizer.freeze": "decoder.embed.weight",
                                                         "data.max_length": 64})
        start = self.rows("lm-tuned", "valid")[0]
        self.assertEqual(start["step"], 0)
        self.assertAlmostEqual(start["loss"], self.rows("lm", "valid")[-1]["loss"], places=5)
        self.assertEqual(self.state("lm-tuned", 3)["master/decoder.embed.weight"],
                         self.state("lm", 8)["master/decoder.embed.weight"])

    def adapters(self, run, step):
        return tensors(f"{self.root}/{run}/checkpoints/step-{step:08d}/training/optimizer.safetensors")

    def use(self, command, *flags):
        done = subprocess.run([OPTIONS.program, command, *flags], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    LORA = {"lora.rank": 4, "lora.alpha": 16, "lora.dropout": 0.1, "optimizer.lr": 1e-2, "optimizer.weight_decay": 0.01}

    def test_adapters_train_alone_and_are_used_with_their_base(self):
        self.train("lora", 20, **self.LORA)
        rows = self.rows("lora", "valid")
        self.assertEqual(rows[0]["loss"], self.rows("base", "valid")[-1]["loss"])  # B starts with zeros
        self.assertLess(rows[-1]["loss"], rows[0]["loss"] - 0.05)
        state = self.adapters("lora", 20)
        self.assertTrue(state)
        for name in state:
            self.assertIn(".lora_", name)  # the base stands in no checkpoint
        model = f"{self.root}/lora/model"
        self.assertFalse(os.path.exists(f"{model}/config.json"))
        with open(f"{model}/adapter_config.json", encoding="utf8") as file:
            config = json.load(file)
        self.assertEqual((config["r"], config["lora_alpha"], config["base_model_name_or_path"]), (4, 16, f"{self.root}/base/model"))
        self.assertEqual(config["target_modules"], ["fc1", "fc2", "k_proj", "out_proj", "q_proj", "v_proj"])
        # The run alone, base and adapter, and the merged model score alike, to the last digit.
        self.use("merge", "--model", f"{self.root}/base", "--adapter", f"{self.root}/lora", "--out", f"{self.root}/merged")
        pairs = [f"{self.root}/data/valid.{side}" for side in ("en", "pt")]
        texts = [self.use("eval", "--quiet", "--device", OPTIONS.device, "--score", "--test", *pairs, *flags) for flags in (
            ["--model", f"{self.root}/lora"], ["--model", f"{self.root}/base", "--adapter", model],
            ["--model", f"{self.root}/merged"], ["--model", f"{self.root}/base"])]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[0], texts[2])
        self.assertNotEqual(texts[0], texts[3])
        done = subprocess.run([OPTIONS.program, "merge", "--model", f"{self.root}/lora", "--out", f"{self.root}/merged"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("choose another --out", done.stderr)

    def test_adapters_resume_bit_for_bit(self):
        more = self.LORA | {"batch.accumulate": 2, "optimizer.ema_decay": 0.9, "model.dropout": 0.2}
        self.train("lora-whole", 12, **more)
        self.train("lora-parts", 5, **more)
        done = subprocess.run([OPTIONS.program, "train", "--resume", "--out", f"{self.root}/lora-parts", "--steps", "12"],
                              capture_output=True, text=True, timeout=250)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.adapters("lora-whole", 12), self.adapters("lora-parts", 12))
        for says, changes in [("rank 4", {"lora.rank": 8}), ("a whole model", {"lora.rank": 0, "lora.alpha": 0, "lora.dropout": 0}),
                              ("alpha 16", {"lora.alpha": 3})]:
            message = self.train("lora-parts", 14, resume=True, expect=2, init=None, **(more | changes)).stderr
            self.assertIn(says, message)

    def test_ranks_train_adapters_as_one_does(self):
        if not OPTIONS.launch:
            self.skipTest("no --launch: this build or machine has one rank")
        launcher = shlex.split(OPTIONS.launch.format(ranks=OPTIONS.ranks))
        plain = self.LORA | {"optimizer.eps": 1e-4, "train.precision": "fp32", "lora.dropout": 0, "model.dropout": 0}
        self.train("lora-many", 5, launcher=launcher, **plain)  # ZeRO 1
        self.train("lora-alone", 5, **plain, **{"batch.accumulate": OPTIONS.ranks})
        many, alone = self.adapters("lora-many", 5), self.adapters("lora-alone", 5)
        self.assertEqual(many.keys(), alone.keys())
        for key in [k for k in alone if k.startswith("master/")]:
            a, b = (struct.unpack(f"<{len(alone[key]) // 4}f", s[key]) for s in (alone, many))
            self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 5 * 1e-2 * 1e-6 / 1e-4, key)

    def test_adapters_that_cannot_be_are_refused(self):
        self.refused("--init-from", init=None, **(SHAPE | {"lora.rank": 4}))
        self.refused("q_prj", "did you mean 'q_proj'", **{"lora.rank": 4, "lora.targets": "q_prj"})
        self.refused("lora.rank is 0", **{"lora.dropout": 0.1})
        if not os.path.exists(f"{self.root}/lora-base/model"):
            self.train("lora-base", 1, **self.LORA)
        self.refused("is an adapter of", "saturate merge", init="lora-base")

    def refused(self, *says, **arguments):
        message = self.train("refused", 2, expect=2, **arguments).stderr
        for text in says:
            self.assertIn(text, message)
        self.assertFalse(os.path.exists(f"{self.root}/refused/checkpoints"))

    def test_what_contradicts_the_model_is_refused(self):
        self.refused("model.d_model is 64", "has 32", **{"model.d_model": 64})
        self.refused("model.preset = tiny", "256", "has 32", **{"model.preset": "tiny"})
        self.refused("model.preset = gpt2-124m", **{"model.preset": "gpt2-124m"})
        self.refused("model.activation is gelu_erf", "has relu", **{"model.activation": "gelu_erf"})
        self.train("agrees", 1, **SHAPE)  # the keys that the first run was made with

    def test_another_vocabulary_is_refused(self):
        self.train("other", 1, init=None, **(SHAPE | {"data.vocab_size": 150}))
        self.refused("other/data/source.spm", "row", **{"data.tokenizer": f"{self.root}/other/data/source.spm"})
        self.refused("data.tokenizer_type is byte", **{"data.tokenizer_type": "byte"})
        self.refused("data.vocab_size is 100", **{"data.vocab_size": 100})
        self.train("own-tokenizer", 1, **{"data.tokenizer": f"{self.root}/base/data/source.spm"})
        folder = f"{self.root}/no-tokenizer"
        shutil.copytree(f"{self.root}/base/model", folder)
        for name in ["source.spm", "target.spm", "manifest.json"]:
            os.remove(f"{folder}/{name}")
        self.refused("has no tokenizer that Saturate reads", init=folder)

    def test_patterns_that_freeze_nothing_or_all_are_refused(self):
        self.refused("encodr.*", "did you mean 'encoder.*'", **{"optimizer.freeze": "encodr.*"})
        self.refused("tied to shared.weight", **{"optimizer.freeze": "output.weight"})
        self.refused("nothing to train", **{"optimizer.freeze": "*"})

    def test_a_resumed_run_keeps_its_origin_and_what_it_froze(self):
        self.train("going", 2, **{"optimizer.freeze": "encoder.*"})
        for says, init, more in [("optimizer.freeze", None, {"optimizer.freeze": ""}), ("init.from", "other-base", {}),
                                 ("optimizer.freeze", None, {"optimizer.freeze": "decoder.*"})]:
            message = self.train("going", 4, init=init, resume=True, expect=2, **more).stderr
            self.assertIn(says, message)
        self.assertIn("random weights", self.train("base", 14, resume=True, expect=2, **SHAPE).stderr)

    def test_weights_that_are_no_numbers_are_refused(self):
        folder = f"{self.root}/damaged"
        shutil.copytree(f"{self.root}/base/model", folder)
        with open(f"{folder}/model.safetensors", "r+b") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            begin = json.loads(file.read(size))["model.encoder.layers.1.fc1.weight"]["data_offsets"][0]
            file.seek(8 + size + begin + 40)
            file.write(struct.pack("<f", float("nan")))
        self.refused("manifest.json", init=folder)
        os.remove(f"{folder}/manifest.json")  # as a folder from elsewhere
        self.refused("must be finite", init=folder)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *REST])
