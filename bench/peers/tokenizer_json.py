#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small tokenizer.json files, trained by Hugging Face's tokenizers with the split patterns of GPT-2, Llama 3 and
Qwen 2, and the ids that the library gives for texts that are hard to split. Needs the package tokenizers.

  python3 bench/peers/tokenizer_json.py FOLDER [--random N]

writes FOLDER/NAME.json and FOLDER/texts.json: what src/data/byte_bpe_test.cpp reads from tests/tokenizers. --random
adds so many texts of random characters, which is too much for a repository.
"""
import argparse
import json
import os
import random

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
    "-----=====_____", "...!!!???", "a.b.c/d\\e", "   leading\n   lines\n\n  two", "\u2028x\u2029y", "ครับ ไทย", "नमस्ते दुनिया", "עברית العربية"]


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
             lambda: generator.choice(["<|end|>", "<mask>", "e\u0301", "\u1100\u1161", "'ll", "  "])]
    return "".join(generator.choice(kinds)() for _ in range(generator.randrange(1, 40)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--random", type=int, default=0)
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    generator = random.Random(5)
    texts = TEXTS + [random_text(generator) for _ in range(options.random)]
    rows = []
    tokenizers = {name: build(name) for name in ("gpt2", "llama3", "qwen2")}
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
