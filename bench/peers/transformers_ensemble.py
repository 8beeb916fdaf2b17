#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two Marian models of random weights as one: saturate translate --model A --model B against transformers, whose beam search
gets the mean of both models' log-probabilities from a LogitsProcessor.

usage: transformers_ensemble.py PATH_OF_SATURATE [--lines 200] [--weights 0.5,0.5]

Needs torch (any, CPU), transformers and numpy. Prints, greedy and with a beam of 4, for how many lines the best translation is
the same, and the largest difference of the scores where it is. The models differ in depth, width and heads.
"""
import argparse
import json
import subprocess
import tempfile

import numpy
import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput

VOCABULARY, EOS, PAD, LONGEST = 150, 0, 149, 24


def make(folder, seed, width, heads, layers, ffn):
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY, d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=ffn, decoder_ffn_dim=ffn, max_position_embeddings=64, pad_token_id=PAD,
        eos_token_id=EOS, decoder_start_token_id=PAD, forced_eos_token_id=None, dropout=0.0, scale_embedding=False,
        activation_function="swish", share_encoder_decoder_embeddings=True, tie_word_embeddings=True, init_std=0.2)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        model.final_logits_bias += 1.5 * torch.randn(VOCABULARY)
        model.final_logits_bias[0, EOS] = 4.2  # most sentences end before the limit
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD, max_length=LONGEST + 1)
    model.save_pretrained(folder)
    return model


class Mean(transformers.LogitsProcessor):
    """What generate() has of its own model, log-probabilities, and those of another, weighted; never padding."""

    def __init__(self, other, source, weights, rows, greedy):
        self.other, self.weights, self.greedy = other, weights, greedy
        encoded = other.get_encoder()(input_ids=source).last_hidden_state
        self.encoded = BaseModelOutput(last_hidden_state=encoded.repeat_interleave(rows, 0))

    def __call__(self, ids, scores):
        if self.greedy:  # logits here, log-probabilities in a beam
            scores = torch.log_softmax(scores, -1)
        logits = self.other(encoder_outputs=self.encoded, decoder_input_ids=ids).logits[:, -1]
        mean = self.weights[0] * scores + self.weights[1] * torch.log_softmax(logits, -1)
        mean[:, PAD] = -float("inf")
        return mean


def theirs(a, b, sources, weights, beams):
    """Each line alone: ids and the sum of log-probabilities of the best."""
    found = []
    for ids in sources:
        source = torch.tensor([ids])
        with torch.no_grad():
            out = a.generate(source, num_beams=beams, do_sample=False, max_length=LONGEST + 1, length_penalty=1.0,
                             early_stopping=False, return_dict_in_generate=True, output_scores=True,
                             logits_processor=transformers.LogitsProcessorList([Mean(b, source, weights, beams, beams == 1)]))
        tokens = out.sequences[0].tolist()[1:]
        tokens = tokens[:tokens.index(EOS) + 1] if EOS in tokens else tokens
        if beams == 1:
            total = sum(out.scores[t][0, token].item() for t, token in enumerate(tokens))
        else:
            total = out.sequences_scores[0].item() * len(tokens)
        found.append(([t for t in tokens if t != EOS], total, EOS in tokens))
    return found


def ours(program, folders, sources, weights, beams):
    command = [program, "translate", "--ids", "--json", "--device", "cpu", "--precision", "fp32", "--quiet", "--beam", str(beams),
               "--length-penalty", "1", "--max-length", str(LONGEST - 1), "--weights", ",".join(map(str, weights))]
    for folder in folders:
        command += ["--model", folder]
    text = "".join(" ".join(map(str, ids)) + "\n" for ids in sources)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    best = [json.loads(line)["translations"][0] for line in done.stdout.splitlines()]
    return [([int(t) for t in one["text"].split()], one["log_probability"]) for one in best]


def alike(theirs_of_line, ours_of_line):
    """At the limit transformers stops without an end and this program ends the line, one token earlier."""
    return theirs_of_line[0] == ours_of_line[0] if theirs_of_line[2] else theirs_of_line[0][:-1] == ours_of_line[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--weights", default="0.5,0.5")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    weights = [float(w) for w in arguments.weights.split(",")]
    random = numpy.random.default_rng(7)
    sources = [random.integers(2, PAD, random.integers(3, 16)).tolist() + [EOS] for _ in range(arguments.lines)]
    with tempfile.TemporaryDirectory() as folder:
        folders = [folder + "/a", folder + "/b"]
        a = make(folders[0], 1, 64, 4, 2, 128)
        b = make(folders[1], 2, 48, 6, 3, 96)
        alone = theirs(a, a, sources, [0.5, 0.5], 1)
        for beams in (1, 4):
            want, got = theirs(a, b, sources, weights, beams), ours(arguments.program, folders, sources, weights, beams)
            same = [i for i in range(len(sources)) if alike(want[i], got[i])]
            ended = [i for i in same if want[i][2]]
            apart = max((abs(want[i][1] - got[i][1]) for i in ended), default=float("nan"))
            for i in range(len(sources)):
                if not alike(want[i], got[i]):
                    print(f"  line {i}: theirs {want[i]}, ours {got[i]}")
            print(f"beam {beams}: {len(same)} of {len(sources)} alike, log-probabilities at most {apart:.2e} apart in "
                  f"{len(ended)}; the first model alone says otherwise in "
                  f"{sum(alone[i][0] != want[i][0] for i in range(len(sources)))}")


if __name__ == "__main__":
    main()
