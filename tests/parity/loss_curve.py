# SPDX-License-Identifier: Apache-2.0
"""The same training in Saturate and in PyTorch: equal loss curves in fp32.

usage: loss_curve.py PATH_OF_SATURATE [--device cuda] [--steps 200] [--record FILE]

Starts MarianMTModel, GPT2LMHeadModel and LlamaForCausalLM of transformers from the weights that Saturate
starts with, trains both on the same text (all of it in every batch, so order within a batch is all that
differs) with the same AdamW, schedule, clipping and label smoothing, no dropout, and compares the loss of
every step. Prints one JSON line a model and ends with 1 when a curve leaves the bound.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import sentencepiece
import torch
import torch.nn.functional as F
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--record", default="", help="append both curves to this JSON lines file")
OPTIONS = parser.parse_args()

PAIRS = 120  # an epoch is one batch
# At a higher rate the training itself is unstable: it multiplies rounding differences step by step.
LR, WARMUP, SMOOTHING, CLIP, DECAY, EPS, BETAS = 3e-4, 40, 0.1, 1.0, 0.01, 1e-6, (0.9, 0.98)
# fp32 rounding is 6e-8 a step; AdamW carries differences on, and they grow by a few per cent a step.
BOUND = 1e-3

MODELS = {
    "marian": {"model.preset": "tiny", "model.norm_position": "post", "model.encoder_layers": 2, "model.decoder_layers": 2},
    "gpt2": {"model.preset": "gpt2-124m", "model.decoder_layers": 2},
    "llama": {"model.preset": "llama-110m", "model.decoder_layers": 2, "model.kv_heads": 2},
}
COMMON = {"model.d_model": 64, "model.heads": 4, "model.ffn": 128, "model.dropout": 0, "model.attention_dropout": 0,
          "model.activation_dropout": 0, "data.vocab_size": 150, "optimizer.weight_decay": DECAY,
          "batch.target_tokens": 4096, "batch.sequences": PAIRS, "optimizer.eps": EPS, "optimizer.clip_norm": CLIP, "optimizer.lr": LR,
          "train.label_smoothing": SMOOTHING, "train.precision": "fp32", "train.log_every": 1,
          "validate.every_steps": 0, "checkpoint.every_minutes": 0, "train.device": OPTIONS.device}


def run(folder, name, steps, warmup):
    settings = COMMON | MODELS[name] | {"train.max_steps": steps, "schedule.warmup_steps": warmup}
    texts = ["train.en", "train.pt"] if name == "marian" else ["train.pt"]
    out = f"{folder}/{name}-{steps}"
    line = [OPTIONS.program, "train", "--train", *[f"{folder}/data/{t}" for t in texts], "--out", out, "--quiet"]
    for key, value in settings.items():
        line += ["--set", f"{key}={value}"]
    subprocess.run(line, check=True)
    return out


def saturate_curve(out):
    with open(f"{out}/metrics.jsonl", encoding="utf8") as file:
        rows = [json.loads(text) for text in file]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def padded(rows, value):
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows], device=OPTIONS.device)


def encode(model, vocab, path):
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=model)
    with open(path, encoding="utf8") as file:
        return [[vocab[piece] for piece in tokenizer.encode(text.rstrip("\n"), out_type=str)] for text in file]


def torch_curve(name, start, data):
    kind = {"marian": transformers.MarianMTModel, "gpt2": transformers.GPT2LMHeadModel,
            "llama": transformers.LlamaForCausalLM}[name]
    model = kind.from_pretrained(start, torch_dtype=torch.float32, attn_implementation="eager").to(OPTIONS.device)
    model.train()
    config = model.config
    if name == "marian":
        # The decoder starts from <pad>, whose row Saturate holds at zero; padding_idx does so in lookups only.
        held = torch.ones(config.vocab_size, 1, device=OPTIONS.device)
        held[config.pad_token_id] = 0
        model.get_decoder().embed_tokens.weight.register_hook(lambda gradient: gradient * held)
    if name == "marian":
        with open(f"{start}/vocab.json", encoding="utf8") as file:
            vocab = json.load(file)
    else:
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=f"{start}/target.spm")
        vocab = {tokenizer.id_to_piece(i): i for i in range(tokenizer.get_piece_size())}
    eos = config.eos_token_id if isinstance(config.eos_token_id, int) else config.eos_token_id[0]
    target = [ids + [eos] for ids in encode(f"{start}/target.spm", vocab, f"{data}/train.pt")]
    if name == "marian":
        source = [ids + [eos] for ids in encode(f"{start}/source.spm", vocab, f"{data}/train.en")]
        pad = config.pad_token_id
        inputs = {"input_ids": padded(source, pad), "attention_mask": padded([[1] * len(s) for s in source], 0),
                  "decoder_input_ids": padded([[pad] + t[:-1] for t in target], pad)}
        labels = padded(target, -100)
    else:
        # Each token of a document predicts the next one, the last one its end.
        text = [t[:-1] for t in target]
        inputs = {"input_ids": padded(text, 0), "attention_mask": padded([[1] * len(t) for t in text], 0)}
        labels = padded([t[1:] for t in target], -100)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    curve = []
    for step in range(1, OPTIONS.steps + 1):
        logits = model(**inputs, use_cache=False).logits.flatten(0, 1)
        flat = labels.flatten()
        loss = F.cross_entropy(logits, flat, ignore_index=-100, label_smoothing=SMOOTHING)
        with torch.no_grad():
            curve.append(F.cross_entropy(logits, flat, ignore_index=-100).item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = LR * (step / WARMUP if step < WARMUP else math.sqrt(WARMUP / step))
        optimizer.step()
    return curve


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([OPTIONS.program, "quickstart-data", "--out", f"{folder}/data", "--pairs", str(PAIRS)], check=True,
                       capture_output=True)
        for name in MODELS:
            # One step of a warm-up without end moves the weights by less than their rounding.
            start = run(folder, name, 1, 10**12) + "/checkpoints/step-00000001"
            ours = saturate_curve(run(folder, name, OPTIONS.steps, WARMUP))
            theirs = torch_curve(name, start, f"{folder}/data")
            apart = [abs(a - b) / b for a, b in zip(ours, theirs)]
            worst = max(worst, max(apart))
            row = {"model": name, "steps": len(ours), "first": [ours[0], theirs[0]], "last": [ours[-1], theirs[-1]],
                   "worst_relative_difference": max(apart), "at_step": apart.index(max(apart)) + 1}
            print(json.dumps(row), flush=True)
            if OPTIONS.record:
                with open(OPTIONS.record, "a", encoding="utf8") as file:
                    file.write(json.dumps(row | {"saturate": ours, "pytorch": theirs}) + "\n")
    sys.exit(0 if worst <= BOUND else 1)


if __name__ == "__main__":
    main()
