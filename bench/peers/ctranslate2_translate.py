#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`saturate translate` on the CPU against CTranslate2 on the same weights and lines, in turns.

    pip install ctranslate2 sentencepiece numpy
    python3 bench/peers/ctranslate2_translate.py --saturate build/bin/saturate --model runs/ende --input test.en \
        [--int8 runs/ende-int8] [--threads 1 2] [--beams 1 4] [--rounds 3] [--reference test.de]

CTranslate2's model is made from the folder's own tensors (a Marian or Pegasus folder, as Saturate exports them), without
PyTorch; its int8 is its own quantisation of these. --int8 is the folder that `saturate quantize` made of --model. Where
that is left out only fp32 is timed. Each thread of CTranslate2 is a worker of its own (inter_threads), its fastest way on
whole files. Prints the median seconds of each program, their ratio, the same in processor seconds (for machines with other work), and how
many lines are equal. Saturate's seconds include the splitting of text into pieces, CTranslate2's do not; neither includes loading.
"""
import argparse
import json
import re
import resource
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import ctranslate2
import numpy as np
import sentencepiece
from ctranslate2.specs import common_spec, transformer_spec

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "gelu_new": common_spec.Activation.GELUTanh,
    "silu": common_spec.Activation.SWISH,
    "swish": common_spec.Activation.SWISH,
}


def read_tensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        begin, end = (8 + size + o for o in t["data_offsets"])
        assert t["dtype"] == "F32", f"{name} is {t['dtype']}"
        out[name] = np.frombuffer(data[begin:end], np.float32).reshape(t["shape"])
    return out


def sinusoids(rows, width):
    angles = np.arange(rows)[:, None] / 10000 ** (np.arange(width // 2) * 2.0 / width)[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def pieces_of(folder):
    """By id: of a Marian folder's vocab.json, or of a Pegasus folder's tokenizer.json."""
    if (folder / "vocab.json").exists():
        ids = json.loads((folder / "vocab.json").read_text())
        return sorted(ids, key=ids.get)
    return [piece for piece, _ in json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]]


def convert(folder, out):
    """Writes a CTranslate2 folder and returns (configuration, pieces by id)."""
    config = json.loads((folder / "config.json").read_text())
    tensors = read_tensors(folder / "model.safetensors")
    pieces = pieces_of(folder)
    width, layers = config["d_model"], (config["encoder_layers"], config["decoder_layers"])
    spec = transformer_spec.TransformerSpec.from_config(
        layers,
        config["encoder_attention_heads"],
        pre_norm=config["model_type"] == "pegasus",
        activation=ACTIVATIONS[config["activation_function"]],
    )

    def norm(to, name):
        to.gamma, to.beta = tensors[name + ".weight"], tensors[name + ".bias"]

    def linear(to, *names):
        to.weight = np.concatenate([tensors[n + ".weight"] for n in names])
        to.bias = np.concatenate([tensors[n + ".bias"] for n in names])

    def attention(to, name, norm_name, own):
        q, kv = [f"{name}.q_proj"], [f"{name}.k_proj", f"{name}.v_proj"]
        linear(to.linear[0], *(q + kv if own else q))
        if not own:
            linear(to.linear[1], *kv)
        linear(to.linear[-1], f"{name}.out_proj")
        norm(to.layer_norm, norm_name)

    for side, stack in ("encoder", spec.encoder), ("decoder", spec.decoder):
        root = f"model.{side}"
        table = tensors.get(f"{root}.embed_tokens.weight", tensors.get("model.shared.weight"))
        embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embeddings.weight = table
        stack.scale_embeddings = config["scale_embedding"]
        stack.position_encodings.encodings = sinusoids(config["max_position_embeddings"], width)
        if f"{root}.layer_norm.weight" in tensors:
            norm(stack.layer_norm, f"{root}.layer_norm")
        for i, layer in enumerate(stack.layer):
            at = f"{root}.layers.{i}"
            attention(layer.self_attention, f"{at}.self_attn", f"{at}.self_attn_layer_norm", True)
            if side == "decoder":
                attention(layer.attention, f"{at}.encoder_attn", f"{at}.encoder_attn_layer_norm", False)
            linear(layer.ffn.linear_0, f"{at}.fc1")
            linear(layer.ffn.linear_1, f"{at}.fc2")
            norm(layer.ffn.layer_norm, f"{at}.final_layer_norm")
    spec.decoder.projection.weight = tensors.get("lm_head.weight", tensors["model.shared.weight"])
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    eos, start = (pieces[config[k]] for k in ("eos_token_id", "decoder_start_token_id"))
    spec.config.eos_token, spec.config.decoder_start_token, spec.config.unk_token = eos, start, "<unk>"
    spec.validate()
    out.mkdir()
    spec.save(str(out))
    return config, pieces, start


class Peer:
    def __init__(self, folder, threads, kind, pieces, start, config):
        self.translator = ctranslate2.Translator(
            folder, "cpu", inter_threads=threads, intra_threads=1, compute_type=kind, max_queued_batches=-1
        )
        self.start, self.config = start, config

    def run(self, lines, beam, batch, limit, penalty):
        begin, processor = time.perf_counter(), time.process_time()
        results = self.translator.translate_batch(
            lines,
            beam_size=beam,
            max_batch_size=batch,
            length_penalty=penalty,
            max_decoding_length=limit,
            suppress_sequences=[[self.start]],
        )
        seconds = time.perf_counter() - begin, time.process_time() - processor
        return seconds, [r.hypotheses[0] for r in results]


def children_seconds():
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


def saturate(o, model, threads, beam, text, out, penalty):
    """(seconds behind the loading, processor seconds of all)."""
    args = [o.saturate, "translate", "--model", model, "--device", "cpu", "--beam", beam, "--threads", threads]
    args += ["--input", text, "--output", out, "--length-penalty", penalty] + o.flags
    before = children_seconds()
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(re.search(r"lines in ([0-9.]+) s", done.stderr).group(1)), children_seconds() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", required=True)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--input", required=True, type=Path)
    parser.add_argument("--reference", type=Path, help="prints sacreBLEU of each (pip install sacrebleu)")
    parser.add_argument("--int8", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64], help="sentences of CTranslate2's batches: the fastest counts")
    parser.add_argument("--limit", type=int, default=256, help="tokens of CTranslate2's longest translation")
    parser.add_argument("--flags", nargs="*", default=[], help="more flags of saturate translate")
    o = parser.parse_args()
    folder = o.model / "model" if (o.model / "model").exists() else o.model
    scratch = Path(tempfile.mkdtemp())
    config, pieces, start = convert(folder, scratch / "ct2")
    source = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    target = sentencepiece.SentencePieceProcessor(str(folder / "target.spm"))
    text = o.input.read_text().splitlines()
    lines = [p + [pieces[config["eos_token_id"]]] for p in source.encode(text, out_type=str)]
    known = set(pieces)
    lines = [[p if p in known else "<unk>" for p in line] for line in lines]
    print(f"ctranslate2 {ctranslate2.__version__}, {len(lines)} lines, {sum(map(len, lines))} tokens")
    penalty = 1.0
    for kind, model in ("float32", o.model), ("int8", o.int8):
        if model is None:
            continue
        (scratch / "empty").write_text("")
        load = statistics.median(
            saturate(o, model, 1, 1, scratch / "empty", scratch / "out", penalty)[1] for _ in range(o.rounds)
        )
        for threads in o.threads:
            peer = Peer(str(scratch / "ct2"), threads, kind, pieces, start, config)
            for beam in o.beams:
                ours, theirs = [], {b: [] for b in o.batches}
                for _ in range(o.rounds):
                    ours.append(saturate(o, model, threads, beam, o.input, scratch / "out", penalty))
                    for b in o.batches:
                        seconds, found = peer.run(lines, beam, b, o.limit, penalty)
                        theirs[b].append(seconds)
                own = (scratch / "out").read_text().splitlines()
                other = [target.decode(f) for f in found]
                equal = sum(a == b for a, b in zip(own, other))
                a, b = statistics.median(t[0] for t in ours), min(statistics.median(x[0] for x in t) for t in theirs.values())
                own_cpu = statistics.median(t[1] for t in ours) - load
                other_cpu = min(statistics.median(x[1] for x in t) for t in theirs.values())
                print(
                    f"{kind}, {threads} threads, beam {beam}: saturate {a:.2f} s, ctranslate2 {b:.2f} s, ratio {b / a:.2f}; "
                    f"processor {own_cpu:.2f}, {other_cpu:.2f} s, ratio {other_cpu / own_cpu:.2f}; "
                    f"{equal} of {len(own)} lines equal",
                    flush=True,
                )
                if equal == 0 and kind == "float32":
                    raise SystemExit("no line is equal, so the two did not do the same work: is --limit what the model allows?")
                if o.reference:
                    import sacrebleu

                    ref = [o.reference.read_text().splitlines()]
                    score = lambda found: sacrebleu.corpus_bleu(found, ref).score
                    print(f"  BLEU saturate {score(own):.2f}, ctranslate2 {score(other):.2f}", flush=True)
            del peer
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
