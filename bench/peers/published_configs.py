#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether models with the switches of published config.json files compute here what transformers computes.

tests/checkpoints/published_configs.json has the fields as they were published, old and new spellings. Each
is made small (widths, layers, vocabulary; ids that no longer exist), written as it stands, given random weights
under transformers' names, and scored and continued by both programs in fp32. Needs torch and transformers.

  python3 bench/peers/published_configs.py --program build/bin/saturate [--model NAME ...] [--device cuda]
"""
import argparse
import json
import os
import sys
import tempfile

import checkpoints
import safetensors.torch
import torch
import transformers as tf

VOCAB, LAYERS, ENCODER = 301, 4, 2


def smaller(config):
    c = dict(config)
    kind = c["model_type"]
    ids = {}
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id"):
        values = c.get(key)
        for v in values if isinstance(values, list) else [values]:
            if v is not None:
                ids.setdefault(v, v if v < 5 else VOCAB - 1 - sum(i >= 5 for i in ids))
        if key in c and values is not None:
            c[key] = [ids[v] for v in values] if isinstance(values, list) else ids[values]
    for key in ("vocab_size", "decoder_vocab_size"):
        if key in c:
            c[key] = VOCAB
    if "bad_words_ids" in c:
        c["bad_words_ids"] = [[c["pad_token_id"]]]
    if kind == "gpt2":
        return c | {"n_embd": 48, "n_head": 4, "n_layer": LAYERS}
    if kind in ("t5", "mt5"):
        c |= {"d_model": 48, "d_ff": 80, "num_heads": 5 if c["num_heads"] * c["d_kv"] != c["d_model"] else 4, "d_kv": 12,
              "num_layers": ENCODER}
        return c | ({"num_decoder_layers": LAYERS} if "num_decoder_layers" in c else {})
    if "encoder_layers" in c:
        return c | {"d_model": 48, "encoder_layers": ENCODER, "decoder_layers": LAYERS, "num_hidden_layers": ENCODER,
                    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 80, "decoder_ffn_dim": 80}
    grouped = c["num_key_value_heads"] != c["num_attention_heads"]
    c |= {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2 if grouped else 4}
    if "head_dim" in c:
        c["head_dim"] = 20
    if "query_pre_attn_scalar" in c:  # as far from the size of a head as published
        c["query_pre_attn_scalar"] = 20 * config["query_pre_attn_scalar"] // config["head_dim"]
    if c.get("sliding_window") and c.get("use_sliding_window", True):
        c["sliding_window"] = 24
    if c.get("max_window_layers"):
        c["max_window_layers"] = LAYERS
    if c.get("rope_scaling"):
        c["rope_scaling"] = c["rope_scaling"] | {"original_max_position_embeddings": 64}
    return c | {"num_hidden_layers": LAYERS}


def judge(entry, options, folder):
    config = smaller(entry["config"])
    json.dump(config, open(os.path.join(folder, "config.json"), "w"))
    loaded = tf.AutoConfig.from_pretrained(folder)
    model = checkpoints.draw(getattr(tf, config["architectures"][0])(loaded), seed=7)
    untied = config["model_type"] in ("t5", "mt5") and config.get("tie_word_embeddings") is False
    if untied:  # transformers 5 ties them all the same
        generator = torch.Generator().manual_seed(5)
        model.lm_head.weight = torch.nn.Parameter(torch.randn(model.lm_head.weight.shape, generator=generator) * 0.3)
        model.config.scale_decoder_outputs = False
    state, seen = {}, set()
    for name, value in model.state_dict().items():
        if value.data_ptr() not in seen:
            state[name] = value.clone()
            seen.add(value.data_ptr())
    safetensors.torch.save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    model.eval()
    generator = torch.Generator().manual_seed(3)
    sequence = lambda n: torch.randint(5, VOCAB - 5, (n,), generator=generator).tolist()
    end = checkpoints.eos_ids(model.config)[0]
    sources, targets = [sequence(n) + [end] for n in (1, 40)], [sequence(n) + [end] for n in (12, 90)]
    common = ["--model", folder, "--device", options.device, "--precision", "fp32", "--ids", "--threads", "1"]
    files = [checkpoints.write_ids(os.path.join(folder, "target.ids"), targets)]
    translates = model.config.is_encoder_decoder
    if translates:
        files.insert(0, checkpoints.write_ids(os.path.join(folder, "source.ids"), sources))
    worst = 0.0
    for line, source, target in zip(checkpoints.run(options.program, "eval", *common, "--score", "--test", *files),
                                    sources, targets, strict=True):
        theirs = checkpoints.log_probabilities(model, source, target)
        worst = max(worst, abs(float(line.split("\t")[0]) - sum(theirs)) / len(theirs))
    prompt = sources[1] if translates else sources[1][:-1]
    wanted = checkpoints.greedy(model, prompt)
    if translates:
        path = checkpoints.write_ids(os.path.join(folder, "one.ids"), [prompt])
        got = checkpoints.run(options.program, "translate", *common, "--beam", "1", "--max-length", "100", "--input", path)[0]
        got = [int(x) for x in got.split()]
    else:
        got = checkpoints.run(options.program, "generate", *common, "--temperature", "0", "--max-tokens", "100",
                              "--prompt", " ".join(map(str, prompt)))[0]
        got = [int(x) for x in got.split()][len(prompt):]
    same = checkpoints.alike(got, wanted)
    right = worst < 2e-4 and same == len(wanted) == len(got)
    print(f"{'right' if right else 'wrong'}: {entry['name']}: log-probabilities within {worst:.1e} a token; greedy tokens "
          f"alike: {same}/{len(wanted)}", flush=True)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default="build/bin/saturate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", nargs="*", help="names in the table; all of them if left out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    right = True
    for entry in json.load(open(os.path.join(root, "tests/checkpoints/published_configs.json"))):
        if options.model and entry["name"] not in options.model:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                right = judge(entry, options, folder) and right
            except RuntimeError as error:
                right = False
                print(f"wrong: {entry['name']}: {error}", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
