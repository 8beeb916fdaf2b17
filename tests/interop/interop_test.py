# SPDX-License-Identifier: Apache-2.0
"""Models trained here, in the programs of others: what CTranslate2 and transformers make of their folders.

usage: interop_test.py PATH_OF_SATURATE [unittest's options]

Needs ctranslate2, transformers and sentencepiece from PyPI; where they are not installed it ends with code 77 and says so.
With PyTorch the folders go through CTranslate2's converter and transformers' generate() as well.
"""
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import unittest

missing = [name for name in ("ctranslate2", "transformers", "sentencepiece") if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: {', '.join(missing)} not installed in {sys.executable}; pip install ctranslate2 transformers sentencepiece")
    sys.exit(77)

import ctranslate2
import sentencepiece
import transformers

import ct2_folder

PROGRAM = sys.argv.pop(1)
TORCH = importlib.util.find_spec("torch") is not None
SENTENCES = 100
SMALL = {
    "model.preset": "tiny", "model.d_model": 64, "model.heads": 4, "model.ffn": 128, "model.encoder_layers": 2,
    "model.decoder_layers": 2, "model.dropout": 0.0, "data.vocab_size": 300, "batch.target_tokens": 1024,
    "optimizer.lr": 4e-3, "optimizer.weight_decay": 0.01, "optimizer.ema_decay": 0.9, "schedule.warmup_steps": 40,
    "train.label_smoothing": 0.05, "train.max_steps": 250, "validate.every_steps": 0, "validate.metric": "loss",
    "checkpoint.every_minutes": 0, "train.device": "cpu",
}


def run(*command, text=None):
    done = subprocess.run([PROGRAM, *command], input=text, capture_output=True, text=True, timeout=250)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stderr}")
    return done.stdout


class Bytes:
    """The byte tokenizer, by its definition: one id a byte, after </s> and <unk>."""

    def encode(self, text):
        return [byte + 2 for byte in text.encode()]

    def decode(self, ids):
        return bytes(i - 2 for i in ids).decode()

    def unk_id(self):
        return 1


class Interop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.root)
        run("quickstart-data", "--out", f"{cls.root}/data", "--pairs", "3000")
        with open(f"{cls.root}/data/test.en", encoding="utf8") as file:
            cls.source = file.read().splitlines()[:SENTENCES]
        assert len(cls.source) == SENTENCES

    def train(self, name, sides=("en", "pt"), **changes):
        out = f"{self.root}/{name}"
        settings = [f for key, value in (SMALL | changes).items() if value is not None for f in ("--set", f"{key}={value}")]
        run("train", "--train", *(f"{self.root}/data/train.{side}" for side in sides), "--out", out, *settings)
        return f"{out}/model"

    def ours(self, folder, beam):
        # The penalty is left out: the programs count a hypothesis' length differently.
        return run("translate", "--model", folder, "--quiet", "--beam", str(beam), "--length-penalty", "0",
                   text="\n".join(self.source) + "\n").splitlines()

    def in_ctranslate2(self, folder, beam):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        out = f"{folder}.ct2"
        shutil.rmtree(out, ignore_errors=True)
        ct2_folder.convert(folder, out, tokenizer)
        translator = ctranslate2.Translator(out, device="cpu", compute_type="float32", intra_threads=1)
        pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(self.source).input_ids]
        results = translator.translate_batch(pieces, beam_size=beam, length_penalty=0, max_decoding_length=100)
        ids = [tokenizer.convert_tokens_to_ids(r.hypotheses[0]) for r in results]
        return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def in_transformers(self, folder, beam):
        import torch
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        batch = tokenizer(self.source, return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        with torch.no_grad():
            ids = model.generate(**batch, num_beams=beam, length_penalty=0.0, max_new_tokens=100)
        return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def is_tie(self, folder, source, a, b):
        """Whether rounding decides between two translations: fp32's, 1e-5 a token."""
        for name, lines in (("tie.source", [source, source]), ("tie.target", [a, b])):
            with open(f"{self.root}/{name}", "w", encoding="utf8") as file:
                file.write("\n".join(lines) + "\n")
        scores = run("eval", "--model", folder, "--device", "cpu", "--quiet", "--score", "--test",
                     f"{self.root}/tie.source", f"{self.root}/tie.target").splitlines()
        (first, tokens), (second, _) = (line.split("\t")[:2] for line in scores)
        return abs(float(first) - float(second)) < 1e-5 * int(tokens)

    def check(self, folder):
        failures = []
        for beam in (1, 4):
            ours = self.ours(folder, beam)
            self.assertGreater(len(set(ours)), SENTENCES // 2, "the model must have learnt to look at its source")
            others = {"CTranslate2": self.in_ctranslate2} | ({"transformers": self.in_transformers} if TORCH else {})
            for name, translate in others.items():
                pairs = zip(self.source, ours, translate(folder, beam), strict=True)
                differ = [f"{source}\n  here  {a}\n  there {b}" for source, a, b in pairs
                          if a != b and not self.is_tie(folder, source, a, b)]
                print(f"{name}, beam {beam}: {SENTENCES - len(differ)} of {SENTENCES} equal or tied", flush=True)
                if differ:
                    failures.append(f"{name}, beam {beam}: {len(differ)} differ\n" + "\n".join(differ[:3]))
        if failures:
            self.fail("\n".join(failures))

    def model_type(self, folder):
        with open(f"{folder}/config.json", encoding="utf8") as file:
            return json.load(file)["model_type"]

    def test_post_norm_is_marian(self):
        folder = self.train("marian", **{"model.norm_position": "post"})
        self.assertEqual(self.model_type(folder), "marian")
        self.check(folder)

    def test_pre_norm_is_pegasus(self):
        folder = self.train("pegasus", **{"model.norm_position": "pre", "data.tokenizer_type": "bpe"})
        self.assertEqual(self.model_type(folder), "pegasus")
        self.check(folder)

    def test_tokenizers_of_language_models(self):
        texts = self.source + [
            "", " ", "  two  spaces ", "tab\tand\nline\r\n", "naïve café e\u0301", "no\u00a0break", "½ ﬁ Ⅷ ＡＢ", "日本語 and emoji 🙂",
            "3,141.59!?", "a" * 300]
        for kind in ("byte", "unigram", "bpe", "char"):
            with self.subTest(kind):
                folder = self.train(f"gpt2-{kind}", sides=("en",), **{
                    "model.preset": "gpt2-124m", "data.tokenizer_type": kind, "train.max_steps": 1, "model.max_positions": 64,
                    "model.encoder_layers": None})
                theirs = transformers.AutoTokenizer.from_pretrained(folder)
                ours = Bytes() if kind == "byte" else sentencepiece.SentencePieceProcessor(model_file=f"{folder}/target.spm")
                for text in texts:
                    ids = ours.encode(text)
                    self.assertEqual(theirs(text).input_ids, ids, repr(text))
                    if ours.unk_id() not in ids:  # the two print an unknown character differently
                        self.assertEqual(theirs.decode(ids, skip_special_tokens=True), ours.decode(ids), repr(text))
                with open(f"{folder}/config.json", encoding="utf8") as file:
                    config = json.load(file)
                self.assertEqual(len(theirs), config["vocab_size"])
                self.assertEqual(theirs.eos_token_id, config["eos_token_id"])
                self.assertEqual(theirs.pad_token_id, config["pad_token_id"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
