# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT here, and those trained here in PEFT: the same log-probabilities, the same merged weights.

usage: peft_test.py PATH_OF_SATURATE [unittest's options]

Needs torch, transformers and peft from PyPI; where they are not installed it ends with code 77 and says so.
"""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

missing = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: {', '.join(missing)} not installed in {sys.executable}; pip install torch transformers peft")
    sys.exit(77)

import peft
import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)
PROGRAM = sys.argv.pop(1)
# The byte tokenizer: </s>, <unk>, a piece for each byte, <pad>.
END, PAD, PIECES = 0, 258, 259
SOURCE = ["a dog runs", "two men sit on a bench", "x", "the cat sees the bird"]
TARGET = ["um cao corre", "dois homens sentam", "y", "o gato ve o passaro"]
SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}


def ids(line):
    return [2 + byte for byte in line.encode()] + [END]


def scatter(model):
    """Weights far from those that training begins with, so that everything shows."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.tie_weights()
    return model


def marian():
    model = scatter(transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=PIECES, max_position_embeddings=64, activation_function="relu", scale_embedding=True, pad_token_id=PAD,
        eos_token_id=END, bos_token_id=END, decoder_start_token_id=PAD, forced_eos_token_id=END, dropout=0.0, **SIZES)))
    with torch.no_grad():
        model.model.shared.weight[PAD] = 0
        model.final_logits_bias.zero_()
        for side in (model.model.encoder, model.model.decoder):
            side.embed_positions.weight.copy_(side.embed_positions.create_weight())
    return model


def gpt2():
    return scatter(transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=PIECES, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=END, eos_token_id=END, attn_pdrop=0,
        resid_pdrop=0, embd_pdrop=0)))


def llama():
    return scatter(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=PIECES, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=END, eos_token_id=END, tie_word_embeddings=False)))


KINDS = {"marian": marian, "gpt2": gpt2, "llama": llama}
ADAPTERS = {
    "marian": [{"target_modules": ["q_proj", "v_proj"]},
               {"target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"], "use_rslora": True, "lora_alpha": 5},
               {"target_modules": r".*decoder.*\.(k_proj|fc2)"},
               {"target_modules": "all-linear", "rank_pattern": {"fc1": 3}, "alpha_pattern": {"decoder.layers.1.fc1": 11}}],
    "gpt2": [{"target_modules": ["c_attn"]}, {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}],
    "llama": [{"target_modules": ["q_proj", "v_proj"]}, {"target_modules": "all-linear", "use_rslora": True},
              {"target_modules": ["k_proj", "gate_proj"], "layers_to_transform": [1]}]}


def scores(model):
    """The log-probability of each target, as saturate eval --score has it, in double precision from the logits on."""
    model.eval()
    out = []
    with torch.no_grad():
        for source, target in zip(SOURCE, TARGET):
            y = torch.tensor([ids(target)])
            if model.config.is_encoder_decoder:
                before = torch.cat([torch.tensor([[PAD]]), y[:, :-1]], 1)
                logits = model(input_ids=torch.tensor([ids(source)]), decoder_input_ids=before).logits
            else:
                logits, y = model(input_ids=y[:, :-1]).logits, y[:, 1:]
            out.append(logits.double().log_softmax(-1).gather(-1, y[..., None]).sum().item())
    return out


class Peft(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.root)
        for name, lines in (("source", SOURCE), ("target", TARGET)):
            with open(f"{cls.root}/{name}", "w", encoding="utf8") as file:
                file.write("\n".join(lines) + "\n")
        # A model of bytes has a tokenizer.json, which the program writes beside one that it trained itself.
        cls.program("quickstart-data", "--out", f"{cls.root}/data", "--pairs", "300")
        sides = [f"{cls.root}/data/train.{side}" for side in ("en", "pt")]
        cls.program("train", "--train", *sides, "--out", f"{cls.root}/bytes", "--preset", "tiny", "--device", "cpu", "--steps", "1",
                    "--batch", "256", "--set", "data.tokenizer_type=byte", "--set", "model.d_model=32", "--set", "schedule.warmup_steps=0")
        for kind, make in KINDS.items():
            make().save_pretrained(f"{cls.root}/{kind}")
            shutil.copy(f"{cls.root}/bytes/model/tokenizer.json", f"{cls.root}/{kind}")

    @staticmethod
    def program(*command, expect=0):
        done = subprocess.run([PROGRAM, *command], capture_output=True, text=True, timeout=250)
        assert done.returncode == expect, f"{command}: {done.returncode}: {done.stderr}"
        return done

    def ours(self, kind, *model):
        texts = ["source", "target"] if kind == "marian" else ["target"]
        done = self.program("eval", *model, "--device", "cpu", "--quiet", "--score", "--test",
                                *(f"{self.root}/{text}" for text in texts))
        return [float(line.split("\t")[0]) for line in done.stdout.splitlines()]

    def base(self, kind):
        return getattr(transformers, {"marian": "MarianMTModel", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}[kind]
                       ).from_pretrained(f"{self.root}/{kind}")

    def same(self, a, b, what):
        for text, x, y in zip(TARGET, a, b):  # sums over their tokens, each to 1e-5
            self.assertAlmostEqual(x, y, delta=1e-5 * len(ids(text)), msg=f"{what}: {text}")

    def test_adapters_of_peft(self):
        for kind, cases in ADAPTERS.items():
            for number, case in enumerate(cases):
                with self.subTest(f"{kind} {case}"):
                    config = peft.LoraConfig(**({"r": 4, "lora_alpha": 8, "task_type": "SEQ_2_SEQ_LM" if kind == "marian"
                                                 else "CAUSAL_LM"} | case))
                    model = peft.get_peft_model(self.base(kind), config)
                    with torch.no_grad():
                        for name, parameter in model.named_parameters():
                            if "lora_" in name:
                                parameter.normal_(0, 0.3)
                    folder = f"{self.root}/{kind}-{number}"
                    model.save_pretrained(folder)
                    truth = scores(model)
                    self.same(truth, self.ours(kind, "--model", f"{self.root}/{kind}", "--adapter", folder), "beside its base")
                    self.same(truth, self.ours(kind, "--model", folder), "alone")
                    self.program("merge", "--model", folder, "--out", f"{folder}-ours")
                    merged = model.merge_and_unload()
                    ours = type(merged).from_pretrained(f"{folder}-ours").state_dict()
                    for name, values in merged.state_dict().items():
                        self.assertLess((values - ours[name]).abs().max().item(), 1e-6, name)

    def test_adapters_trained_here(self):
        for kind, asked, *more in (("marian", "rank=4,alpha=8"), ("marian", "rank=3,targets=k_proj+fc1,rslora"),
                                   ("marian", "rank=4,alpha=8", "--quantize-base", "nf4"),
                                   ("gpt2", "rank=4"), ("llama", "rank=2,alpha=6,targets=q_proj+up_proj")):
            with self.subTest(f"{kind} {asked} {more}"):
                out = f"{self.root}/run-{kind}-{asked}-{len(more)}"
                texts = [f"{self.root}/data/train.{side}" for side in (("en", "pt") if kind == "marian" else ("pt",))]
                self.program("train", "--init-from", f"{self.root}/{kind}", "--lora", asked, *more, "--train", *texts, "--out", out,
                                 "--steps", "20", "--lr", "0.02", "--batch", "512", "--device", "cpu",
                                 "--set", "schedule.warmup_steps=5", "--set", "data.max_length=60")
                with open(f"{out}/model/adapter_config.json", encoding="utf8") as file:
                    self.assertEqual(json.load(file)["base_model_name_or_path"], f"{self.root}/{kind}")
                base = scores(self.base(kind))
                model = peft.PeftModel.from_pretrained(self.base(kind), f"{out}/model")
                theirs = scores(model)
                self.assertGreater(max(abs(a - b) for a, b in zip(base, theirs)), 1)
                self.same(theirs, self.ours(kind, "--model", out), "its run")
                with open(f"{out}/model/adapter_model.safetensors", "rb") as file:
                    self.assertIn(b"lora_B.weight", file.read(1 << 16))
                loaded = {n for n, p in model.named_parameters() if "lora_B" in n and p.abs().max() > 0}
                self.assertEqual(len(loaded), sum("lora_B" in n for n, _ in model.named_parameters()))

    def test_what_is_more_than_an_adapter_is_refused(self):
        for case, says in (({"use_dora": True}, "magnitudes"), ({"modules_to_save": ["lm_head"]}, "whole modules"),
                           ({"bias": "all"}, "biases"), ({"init_lora_weights": "pissa"}, "changes the base"),
                           ({"target_modules": ["q_proj", "embed_tokens"]}, "has no place")):
            with self.subTest(str(case)):
                model = peft.get_peft_model(self.base("llama"), peft.LoraConfig(
                    **({"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | case)))
                folder = f"{self.root}/refused"
                shutil.rmtree(folder, ignore_errors=True)
                model.save_pretrained(folder)
                done = self.program("eval", "--model", f"{self.root}/llama", "--adapter", folder, "--device", "cpu", "--test",
                                        f"{self.root}/target", expect=2)
                self.assertIn(says, done.stderr)
                self.assertIn(folder, done.stderr)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    unittest.main()
