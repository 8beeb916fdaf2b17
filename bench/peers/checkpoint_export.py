#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether what `saturate export` writes in bf16 and in shards opens elsewhere.

transformers makes a small model of each family with random weights; it is exported, opened by transformers again and
compared tensor by tensor with the same weights rounded to bf16; where CTranslate2 is installed its converter opens the
folders of the families that it has a loader for, and continues texts with the language models. Needs torch and transformers; no network.

  python3 bench/peers/checkpoint_export.py --program build/bin/saturate [--family NAME ...]

Prints one line a family and reader: "right:", or "wrong:" with the reason. Exit status 1 if any is wrong.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import checkpoints as weights  # beside this file
import torch
import transformers as tf

try:
    import ctranslate2
except ImportError:
    ctranslate2 = None

FAMILIES = ("marian", "pegasus", "m2m100", "bart", "mbart", "t5", "gpt2", "llama2", "llama3", "mistral", "qwen2", "qwen3", "gemma2")


def rounded(state):
    return {name: value.bfloat16().float() for name, value in state.items()}


def judge(name, program, folder):
    torch.manual_seed(1)
    model = weights.draw(weights.FAMILIES[name](), seed=7)
    source, out = os.path.join(folder, "source"), os.path.join(folder, "out")
    model.save_pretrained(source)
    done = subprocess.run([program, "export", "--model", source, "--out", out, "--dtype", "bf16", "--max-shard-size", "60KB"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        print(f"wrong: {name}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return False
    files = [f for f in os.listdir(out) if f.endswith(".safetensors")]
    back = type(model).from_pretrained(out, dtype=torch.float32)
    wanted, got = rounded(model.state_dict()), back.state_dict()
    computed = lambda n: "embed_positions" in n and model.config.model_type in ("marian", "pegasus", "m2m_100")
    # BART's and mBART's tables have two rows before the first position, which no text uses;
    # Gemma's norms are 1 + weight here, whose last bits rounding may turn.
    used = lambda n, v: v[2:] if "embed_positions" in n else v
    differ = [n for n, v in wanted.items() if not computed(n) and not torch.allclose(used(n, v), used(n, got[n]), rtol=2**-7, atol=2e-7)]
    print(f"{'wrong' if differ else 'right'}: {name}: transformers opens {len(files)} shards in bf16"
          + (f"; {differ[0]} differs" if differ else ""), flush=True)
    return not differ


def judge_ctranslate2(folder, program, scratch):
    """A folder with a tokenizer, as checkpoint_text.py --keep leaves it."""
    name, out = os.path.basename(folder), os.path.join(scratch, "out")
    done = subprocess.run([program, "export", "--model", folder, "--out", out, "--dtype", "bf16", "--max-shard-size", "60KB"],
                          capture_output=True, text=True)
    try:
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        converted = os.path.join(scratch, "ct2")
        ctranslate2.converters.TransformersConverter(out).convert(converted)
        ctranslate2.Translator(converted)
    except Exception as error:  # whatever their converter raises is the finding
        print(f"wrong: {name}: CTranslate2 says: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return False
    print(f"right: {name}: CTranslate2 opens it", flush=True)
    return True


DECODERS = ("gpt2", "llama2", "llama3", "mistral", "qwen2", "qwen3", "gemma2")


def byte_tokenizer(vocabulary, config):
    """Tokens of bytes and as many more as the model has ids; CTranslate2's converter asks for one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # transformers adds the first to a Qwen's tokenizer that lacks it.
    tokens = {t: i for i, t in enumerate(["<|endoftext|>"] + [f"<{i}>" for i in range(1, vocabulary - 256)] + alphabet)}
    t = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end = weights.eos_ids(config)[0]
    return tf.PreTrainedTokenizerFast(tokenizer_object=t, bos_token=f"<{config.bos_token_id}>", eos_token=f"<{end}>", unk_token="<5>")


def judge_decoder(name, program, scratch):
    """A language model exported in fp32: CTranslate2's greedy tokens against those of `generate`."""
    weights.HEAD = weights.WIDTH // weights.HEADS  # its Llama has no other
    model = weights.draw(weights.FAMILIES[name](), seed=7)
    source, out = os.path.join(scratch, "source"), os.path.join(scratch, "out")
    os.makedirs(source)
    model = weights.save(name, model, source)
    byte_tokenizer(model.config.vocab_size, model.config).save_pretrained(source)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(6, 299, (n,), generator=generator).tolist() for n in (3, 12, 30)]
    common = ["--device", "cpu", "--precision", "fp32", "--ids", "--threads", "1"]
    try:
        subprocess.run([program, "export", "--model", source, "--out", out, "--max-shard-size", "200KB"], capture_output=True, check=True)
        converted = os.path.join(scratch, "ct2")
        ctranslate2.converters.TransformersConverter(out).convert(converted)
        peer = ctranslate2.Generator(converted, compute_type="float32", intra_threads=1)
    except Exception as error:  # whatever their converter raises is the finding
        print(f"wrong: {name}: CTranslate2 says: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return False
    tokens = tf.AutoTokenizer.from_pretrained(out)
    if name == "mistral":  # its windows differ from transformers' (and so from ours): the original is the measure
        ctranslate2.converters.TransformersConverter(source).convert(converted + "-source")
        original = ctranslate2.Generator(converted + "-source", compute_type="float32", intra_threads=1)
    same = total = 0
    for prompt in prompts:
        got = weights.run(program, "generate", "--model", source, *common, "--temperature", "0", "--max-tokens", "100",
                          "--prompt", " ".join(map(str, prompt)))[0]
        got = [int(x) for x in got.split()][len(prompt):]
        ask = lambda g: g.generate_batch([tokens.convert_ids_to_tokens(prompt)], max_length=100, sampling_topk=1,
                                         include_prompt_in_result=False, end_token=weights.eos_ids(model.config))[0].sequences_ids[0]
        theirs = ask(peer)
        got = ask(original) if name == "mistral" else got
        same += weights.alike(got, theirs)
        total += max(len(got), len(theirs))
    print(f"{'right' if same == total else 'wrong'}: {name}: CTranslate2 opens the export; greedy tokens alike: {same}/{total}", flush=True)
    return same == total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/bin/saturate")
    parser.add_argument("--family", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--folders", nargs="*", default=[], help="folders with tokenizers, for CTranslate2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    right = True
    for name in options.family:
        with tempfile.TemporaryDirectory() as folder:
            right = judge(name, options.program, folder) and right
    for name in DECODERS if ctranslate2 else []:
        if name in options.family:
            with tempfile.TemporaryDirectory() as scratch:
                right = judge_decoder(name, options.program, scratch) and right
    for folder in options.folders if ctranslate2 else []:
        with tempfile.TemporaryDirectory() as scratch:
            right = judge_ctranslate2(folder.rstrip("/"), options.program, scratch) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
