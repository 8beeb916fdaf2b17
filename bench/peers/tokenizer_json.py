#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small tokenizer.json files and the ids that Hugging Face's tokenizers gives with them for texts that are hard to
split: byte-level BPE with the split patterns of GPT-2, Llama 3 and Qwen 2, and SentencePiece models in the form that
transformers gives those of T5, mBART, NLLB, Llama 2 and Gemma. Needs the packages tokenizers and sentencepiece.

  python3 bench/peers/tokenizer_json.py FOLDER [--random N] [--nfkc]

writes FOLDER/NAME.json and FOLDER/texts.json: what src/data/json_tokenizer_test.cpp reads from tests/tokenizers.
--random adds so many texts of random characters and --nfkc takes SentencePiece's usual table of 240 kB in place of a
small one: too much for a repository, so give such a folder to that test as SATURATE_TOKENIZERS.
"""
import argparse
import base64
import json
import os
import random

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SENTENCES = [
    "The quick brown fox isn't lazy; it's 1234567 years old, they'll say.", "Ein Mädchen öffnet die Tür – schön!",
    "def main():\n    return  {'a': [1, 2, 3]}\n\n\n", "Das ist ein Satz.   Noch einer.\tEnde\r\n",
    "И ещё немного текста на русском языке.", "日本語の文章です。中文也可以。", "¿Qué tal? ¡Muy bien!", "a b c d e f g h",
    "the the the there then them", "1 22 333 4444 55555", "HELLO I'M SHOUTING, WE'LL SEE"]
TEXTS = SENTENCES + [
    "", " ", "  ", "\n", " \n ", "\r\n\r\n", "\t\t x", "x  ", " x", "a\u00a0b\u2003c\u3000d\u0085e\u1680f\u180eg\ufeffh",
    "e\u0301 \u00e9 \u212b \u1e9b\u0323 \u0344 \uac00 \u1100\u1161", "x\u0301\u0302\u0303y", "\U0001F469\u200D\U0001F467 \U0001F1E9\U0001F1EA",
    "½ Ⅷ ² ④ ٣٤٥ १२३", "don't DON'T don’t l'été", "'S 'sx ''s 'ſ", "\u0000\u0001\u007f\u0080", "\ud7ff\ue000\uffff\U0010ffff",
    "<|start|>user<|end|> <|end|>x  <mask>  y<mask>", "<|star|> <|start", "\u202eabc\u202c", "ǅ ǈ ﬁ ß İ ı", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 8,
    "-----=====_____", "...!!!???", "a.b.c/d\\e", "   leading\n   lines\n\n  two", "\u2028x\u2029y", "ครับ ไทย", "नमस्ते दुनिया", "עברית العربية",
    "\u2581a \u2581 b\u2581", " </s> en_XX<mask> the<extra_id_1>", "\uff21\u3000b the \uff21 b \uff42\ufb01\u2026", "x\u0301\u0302\u0303 x\u0301 xe\u0301 q\u0301 aq q",
    "a\u200bb \u200b c", "<0x41><0xff> \U00010348\U0001F9FF"]


# What the small table maps: full width, ligatures, signs for spaces, accents behind their letter, and one that
# leaves nothing.
RULES = {"\uff21": "A", "\uff42": "b", "\ufb01": "fi", "\u2026": "...", "\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ",
         "e\u0301": "\u00e9", "a\u0301": "\u00e1", "\u212b": "\u00c5", "\u00bd": "1/2", "\u200b": "", "\u2160": "I", "\u2161": "II",
         "\uff0c": ",", "x\u0301\u0302": "y", "q": "k", "q\u0301": "p"}


def sentencepiece_model(folder, kind, nfkc, **more):
    text, rules, prefix = (os.path.join(folder, name) for name in ("text.tmp", "rules.tmp", "model.tmp"))
    with open(text, "w") as file:
        file.write("\n".join(" ".join(s.split()) for s in SENTENCES * 4))
    with open(rules, "w") as file:
        for source, target in RULES.items():
            code = lambda t: " ".join(f"{ord(c):X}" for c in t)
            file.write(f"{code(source)}\t{code(target)}\n")
    normal = {"normalization_rule_name": "nmt_nfkc"} if nfkc else {"normalization_rule_tsv": rules}
    sentencepiece.SentencePieceTrainer.train(
        input=text, model_prefix=prefix, model_type=kind, hard_vocab_limit=False, minloglevel=2, character_coverage=0.98,
        **({"vocab_size": 260, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} | normal | more))
    proto = sentencepiece_model_pb2.ModelProto()
    with open(prefix + ".model", "rb") as file:
        proto.ParseFromString(file.read())
    for name in (text, rules, prefix + ".model", prefix + ".vocab"):
        os.remove(name)
    return proto


def merges_of(pieces):
    """As convert_slow_tokenizer of transformers makes them of a SentencePiece model of BPE."""
    rank = {p: i for i, p in enumerate(pieces)}
    pairs = []
    for piece in pieces:
        cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in rank and piece[i:] in rank]
        pairs += sorted(cuts, key=lambda c: (rank[c[0]], rank[c[1]]))
    return pairs


def build_of_pieces(name, folder, nfkc):
    """As transformers' converters put them together."""
    spaces = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first" if name == "nllb" else "always")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    if name in ("t5", "mbart"):
        proto = sentencepiece_model(folder, "unigram", nfkc)
        pieces = [(p.piece, p.score) for p in proto.pieces]
        if name == "mbart":
            pieces = [(s, 0.0) for s in special] + pieces[3:] + [("en_XX", 0.0), ("de_DE", 0.0), ("<mask>", 0.0)]
        else:
            pieces += [(f"<extra_id_{i}>", 0.0) for i in (1, 0)]
        t = Tokenizer(models.Unigram(pieces, unk_id=3 if name == "mbart" else 2, byte_fallback=False))
        precompiled = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
        if name == "t5":
            t.normalizer = precompiled
            t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
        else:
            t.normalizer = normalizers.Sequence([precompiled, normalizers.Replace(Regex(" {2,}"), " ")])
            t.pre_tokenizer = spaces
        t.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    else:
        falls = name != "nllb"
        proto = sentencepiece_model(folder, "bpe", nfkc, byte_fallback=falls, vocab_size=560 if falls else 260)
        pieces = [p.piece for p in proto.pieces][3:]
        vocab = {p: i for i, p in enumerate(special + pieces)}
        t = Tokenizer(models.BPE(vocab, merges_of(pieces), unk_token="<unk>", fuse_unk=True, byte_fallback=falls))
        if name == "nllb":
            t.normalizer = normalizers.Sequence([normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
                                                 normalizers.Replace(Regex(" {2,}"), " ")])
            t.pre_tokenizer = spaces
            t.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="first")
        elif name == "llama2":
            t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
            t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
        else:
            t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "\u2581")])
            t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
            t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    known = [s for s in special + ["<extra_id_0>", "<extra_id_1>", "en_XX", "de_DE"] if t.token_to_id(s) is not None]
    t.add_special_tokens([AddedToken(s, normalized=False) for s in known])
    t.add_tokens([AddedToken("<mask>", lstrip=True, normalized=True), AddedToken("\uff21\u3000b", normalized=True)])
    end = t.token_to_id("</s>")
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", end)])
    return t


def build(name):
    t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    if name == "qwen2":
        t.normalizer = normalizers.NFC()
    if name == "gpt2":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3 if name == "llama3" else QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(SENTENCES * 3, trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens([AddedToken("<|start|>", normalized=False), AddedToken("<|end|>", normalized=False)])
    t.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    if name == "llama3":
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|start|> $A", pair="<|start|> $A <|start|> $B", special_tokens=[("<|start|>", t.token_to_id("<|start|>"))])])
    return t


def random_text(generator):
    kinds = [lambda: chr(generator.randrange(32, 127)), lambda: generator.choice(" \t\n\r\u00a0\u2003"),
             lambda: chr(generator.randrange(0xA0, 0x600)), lambda: generator.choice("'sStTlLdDmM019٣"),
             lambda: chr(generator.choice([generator.randrange(0x600, 0xD800), generator.randrange(0xE000, 0x10FFFF)])),
             lambda: generator.choice(["<|end|>", "<mask>", "e\u0301", "\u1100\u1161", "'ll", "  ", "</s>", "en_XX",
                                       "<extra_id_0>", "\uff21\u3000b", "\ufb01", "x\u0301\u0302", "the ", "sch\u00f6n"])]
    return "".join(generator.choice(kinds)() for _ in range(generator.randrange(1, 40)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--nfkc", action="store_true")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    generator = random.Random(5)
    texts = TEXTS + [random_text(generator) for _ in range(options.random)]
    rows = []
    tokenizers = {name: build(name) for name in ("gpt2", "llama3", "qwen2")}
    for name in ("t5", "mbart", "nllb", "llama2", "gemma"):
        tokenizers[name] = build_of_pieces(name, options.folder, options.nfkc)
    for name, t in tokenizers.items():
        t.save(os.path.join(options.folder, name + ".json"), pretty=False)
    for text in texts:
        row = {"text": text}
        for name, t in tokenizers.items():
            ids = t.encode(text, add_special_tokens=False).ids
            row[name] = {"ids": ids, "text": t.decode(ids)}
        rows.append(row)
    with open(os.path.join(options.folder, "texts.json"), "w") as file:
        json.dump(rows, file, ensure_ascii=True)


if __name__ == "__main__":
    main()
