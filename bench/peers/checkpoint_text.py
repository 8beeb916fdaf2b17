#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether published forms of multilingual models and tokenizers translate text as transformers does.

SentencePiece models are trained here; transformers' own classes make the tokenizers of NLLB, M2M100, mBART, mBART-50,
T5, Pegasus and OPUS-MT from them, and small models with random weights. `saturate translate` then translates lines
that are hard to split, greedily, with source and target language, and so does transformers' generate. Needs torch,
transformers and sentencepiece; no network.

  python3 bench/peers/checkpoint_text.py --program build/bin/saturate [--case NAME ...] [--device cuda]

Prints one line a case: "right:", or "wrong:" with the first line that differs. Exit status 1 if any is wrong.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import checkpoints as weights  # beside this file: draws every parameter anew
import sentencepiece
import torch
import transformers as tf
from sentencepiece import sentencepiece_model_pb2

LENGTH = 24  # tokens of a translation at most
LANGUAGES = ["ace_Latn", "deu_Latn", "eng_Latn", "fra_Latn", "zho_Hans"]
LINES = [
    "The quick brown fox isn't lazy; it's 1234567 years old, they'll say.", "Ein Mädchen öffnet die Tür – schön!",
    "a", "  two  spaces   here ", "ﬁne ligatures: ﬃ ½ ２０ Ａ", "И ещё немного текста.", "日本語の文章です。中文也可以。",
    "e\u0301 \u00e9 \u212b \u1e9b\u0323 x\u0301\u0302\u0303y", "\U0001F469\u200D\U0001F467 \U0001F1E9\U0001F1EA emoji", "tab\there",
    "no\u00a0break\u2003space", "HELLO I'M SHOUTING...!!!???", "http://a.b/c?d=e&f", "▁under ▁ line", "x " * 30, "the the there then them"]


def train(folder, kind, **more):
    text, prefix = os.path.join(folder, "text"), os.path.join(folder, "spm")
    with open(text, "w") as file:
        file.write("\n".join(" ".join(line.split()) for line in LINES[:7] * 8))
    sentencepiece.SentencePieceTrainer.train(
        input=text, model_prefix=prefix, model_type=kind, vocab_size=220, hard_vocab_limit=False, minloglevel=2,
        character_coverage=0.98, **more)
    return prefix + ".model"


def proto_of(path):
    proto = sentencepiece_model_pb2.ModelProto()
    with open(path, "rb") as file:
        proto.ParseFromString(file.read())
    return proto


def write(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)


FAIRSEQ = dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
GOOGLE = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def nllb(folder, published):
    path = train(folder, "bpe", **FAIRSEQ)
    proto = proto_of(path)
    pieces = ["<s>", "<pad>", "</s>", "<unk>"] + [p.piece for p in proto.pieces][3:]
    vocab = {p: i for i, p in enumerate(pieces + LANGUAGES + ["<mask>"])}
    ranks = {p: i for i, p in enumerate(pieces)}
    merges = []
    for piece in pieces[4:]:
        cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ranks and piece[i:] in ranks]
        merges += sorted(cuts, key=lambda c: (ranks[c[0]], ranks[c[1]]))
    tokenizer = tf.NllbTokenizer(vocab=vocab, merges=merges, extra_special_tokens=LANGUAGES, src_lang="eng_Latn",
                                 _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap)
    if published:
        shutil.copy(path, os.path.join(folder, "sentencepiece.bpe.model"))
        write(folder, "special_tokens_map.json", {"additional_special_tokens": LANGUAGES, "mask_token": {"content": "<mask>"}})
        write(folder, "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer", "src_lang": None, "tgt_lang": None})
    else:
        tokenizer.save_pretrained(folder)
    return tokenizer, weights.m2m100, "eng_Latn", "fra_Latn"


def m2m100(folder, published):
    path = train(folder, "bpe", **FAIRSEQ)
    spm = sentencepiece.SentencePieceProcessor(model_file=path)
    pieces = ["<s>", "<pad>", "</s>", "<unk>"] + [spm.id_to_piece(i) for i in range(spm.get_piece_size() - 1, 2, -1)]
    write(folder, "vocab.json", {p: i for i, p in enumerate(pieces)})
    shutil.copy(path, os.path.join(folder, "sentencepiece.bpe.model"))
    tokenizer = tf.M2M100Tokenizer(os.path.join(folder, "vocab.json"), os.path.join(folder, "sentencepiece.bpe.model"))
    codes = [f"__{c}__" for c in tokenizer.lang_code_to_id]
    if published:
        write(folder, "special_tokens_map.json", {"additional_special_tokens": codes})
    else:
        tokenizer.save_pretrained(folder)
    tokenizer.src_lang = "de"
    tokenizer.total = len(pieces) + len(codes)
    return tokenizer, weights.m2m100, "de", "zh"


def mbart(folder, published, tokenizer_class=tf.MBartTokenizer):
    path = train(folder, "unigram", **FAIRSEQ)
    shutil.copy(path, os.path.join(folder, "sentencepiece.bpe.model"))
    write(folder, "tokenizer_config.json", {"tokenizer_class": tokenizer_class.__name__})
    tokenizer = tokenizer_class.from_pretrained(folder, src_lang="en_XX")
    if not published:
        os.remove(os.path.join(folder, "sentencepiece.bpe.model"))
        tokenizer.save_pretrained(folder)
    return tokenizer, weights.mbart, "en_XX", "ro_RO"


def mbart50(folder, published):
    return mbart(folder, published, tf.MBart50Tokenizer)


def google(folder, published, tokenizer_class, model):
    path = train(folder, "unigram", **GOOGLE)
    shutil.copy(path, os.path.join(folder, "spiece.model"))
    write(folder, "tokenizer_config.json", {"tokenizer_class": tokenizer_class.__name__})
    tokenizer = tokenizer_class.from_pretrained(folder)
    if not published:
        os.remove(os.path.join(folder, "spiece.model"))
        tokenizer.save_pretrained(folder)
    return tokenizer, model, None, None


def t5(folder, published):
    return google(folder, published, tf.T5Tokenizer, weights.t5)


def pegasus(folder, published):
    return google(folder, published, tf.PegasusTokenizer, weights.pegasus)


def opus(folder, published):
    path = train(folder, "unigram", unk_id=1, eos_id=0, bos_id=-1, pad_id=-1)
    for side in ("source.spm", "target.spm"):
        shutil.copy(path, os.path.join(folder, side))
    spm = sentencepiece.SentencePieceProcessor(model_file=path)
    pieces = ["</s>", "<unk>"] + [">>fra<<", ">>por<<"] + [spm.id_to_piece(i) for i in range(2, spm.get_piece_size())]
    write(folder, "vocab.json", {p: i for i, p in enumerate(pieces + ["<pad>"])})
    tokenizer = tf.MarianTokenizer(*(os.path.join(folder, n) for n in ("source.spm", "target.spm", "vocab.json")))
    tokenizer.punc_normalizer = lambda text: text  # that of sacremoses, where it is installed, is not of the model
    return tokenizer, weights.marian, None, ">>por<<"


# Of each family the published files, and where it has one the tokenizer.json that transformers writes alone.
CASES = {"nllb": (nllb, True), "nllb-json": (nllb, False), "m2m100": (m2m100, True), "m2m100-saved": (m2m100, False),
         "mbart": (mbart, True), "mbart-json": (mbart, False), "mbart50": (mbart50, True), "mbart50-json": (mbart50, False),
         "t5": (t5, True), "t5-json": (t5, False), "pegasus": (pegasus, True), "pegasus-json": (pegasus, False),
         "opus-mt": (opus, True)}


def judge(name, program, device, folder):
    make, published = CASES[name]
    tokenizer, model_of, source, target = make(folder, published)
    # Rows behind the vocabulary, as the published models have them.
    weights.VOCAB = max(getattr(tokenizer, "total", 0), len(tokenizer)) + {m2m100: 8, nllb: 2, t5: 28}.get(make, 0)
    model = weights.draw(model_of(), seed=11)
    config = model.config
    with torch.no_grad():  # so that the token before is not always the best
        model.get_input_embeddings().weight *= 0.3
    model.save_pretrained(folder)
    write(folder, "generation_config.json", {})
    prefix = f"{target} " if make is opus else ""
    forced = tokenizer.convert_tokens_to_ids(f"__{target}__" if make is m2m100 else target) if target and not prefix else None
    wanted = []
    for line in LINES:
        ids = torch.tensor([tokenizer(prefix + line).input_ids])
        out = model.generate(ids, num_beams=1, do_sample=False, max_new_tokens=LENGTH, forced_bos_token_id=forced,
                             forced_eos_token_id=None, bad_words_ids=[[config.pad_token_id]],
                             use_cache=False)  # T5's cache fails with fewer encoder layers than decoder layers
        text = tokenizer.decode(out[0], skip_special_tokens=True).replace("\n", " ")
        # transformers 5 does not count these among its special tokens.
        wanted.append(re.sub("__[a-z]+__", "", text).strip() if make is m2m100 else text)
    text = os.path.join(folder, "lines")
    with open(text, "w") as file:
        file.write("".join(line + "\n" for line in LINES))
    flags = (["--source-lang", source] if source else []) + (["--target-lang", target.strip("<>")] if target else [])
    done = subprocess.run([program, "translate", "--model", folder, "--device", device, "--precision", "fp32", "--beam", "1",
                           "--max-length", str(LENGTH - (forced is not None)), "--input", text, "--quiet", *flags], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"wrong: {name}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return False
    got = done.stdout.splitlines()
    differ = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b]
    if differ:
        i = differ[0]
        print(f"wrong: {name}: {len(differ)} of {len(LINES)} lines differ, the first {LINES[i]!r}: {got[i]!r} for {wanted[i]!r}")
        return False
    print(f"right: {name}: {len(LINES)} of {len(LINES)} lines as transformers has them", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/bin/saturate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--keep", help="folder in which the models are left")
    options = parser.parse_args()
    torch.set_num_threads(1)
    right = True
    for name in options.case:
        with tempfile.TemporaryDirectory() as scratch:
            folder = os.path.join(options.keep or scratch, name)
            os.makedirs(folder, exist_ok=True)
            right = judge(name, options.program, options.device, folder) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
