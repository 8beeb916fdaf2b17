#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Translation on a GPU beside CTranslate2 and transformers, same weights, in turns: whole texts, and one sentence at a time.

    pip install ctranslate2 transformers torch sentencepiece
    python3 bench/peers/translate_gpu.py --saturate build/bin/saturate --model runs/ende --input train.en --single test.en
    python3 bench/peers/translate_gpu.py ... --only compiled --wait-for FILE    # compiles, then waits for FILE before it measures

The model is a run whose folder transformers opens (Marian, Pegasus); CTranslate2's own converter reads it. Whole texts: seconds from
tokens or lines in memory to the last translation, without loading. Ours begin and end with text; CTranslate2's with pieces, so its
splitting is not in its time. Of its batch sizes (tokens of source) the fastest counts. One sentence at a time: a sentence is sent
when the answer to the one before is there, 10 before the clock starts. Ours is asked over one HTTP connection to `saturate serve`,
and by a pipe to `saturate translate`; the others in their own process, from text to text. An output is right where it is that
of ours in fp32.
"""
import argparse
import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

LIMIT = 256  # tokens of the longest translation


def run_saturate(o, beam, source, out, precision):
    """Seconds behind the loading."""
    done = subprocess.run(
        [o.saturate, "translate", "--model", o.model, "--device", o.device, "--precision", precision, "--beam", str(beam),
         "--input", source, "--output", out], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit("wrong: saturate translate: " + done.stderr.strip()[-300:])
    return float(re.search(r"lines in ([0-9.]+) s", done.stderr).group(1))


class Pieces:
    def __init__(self, folder):
        import sentencepiece

        self.source, self.target = (sentencepiece.SentencePieceProcessor(f"{folder}/{n}.spm") for n in ("source", "target"))

    def split(self, line):
        return self.source.encode(line, out_type=str) + ["</s>"]


class CTranslate2:
    def __init__(self, o):
        import ctranslate2

        out = tempfile.mkdtemp() + "/ct2"
        ctranslate2.converters.TransformersConverter(str(o.folder)).convert(out)
        self.pieces = Pieces(o.folder)
        self.model = ctranslate2.Translator(out, device=o.device, compute_type=o.compute)
        self.name = f"CTranslate2 {ctranslate2.__version__} {o.compute}"

    def translate(self, lines, beam, batch=0):
        results = self.model.translate_batch(lines, beam_size=beam, max_batch_size=batch, batch_type="tokens", max_decoding_length=LIMIT)
        return [r.hypotheses[0] for r in results]

    def one(self, beam):
        return lambda text: self.pieces.target.decode(self.translate([self.pieces.split(text)], beam)[0])


class Transformers:
    """`pad`: sources get this length and the step is compiled, with a cache of fixed size; 0: as it comes."""

    def __init__(self, o, pad):
        import torch
        import transformers

        self.torch, self.pad, self.device = torch, pad, o.device
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(o.folder)
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(o.folder, dtype=getattr(torch, o.compute)).to(o.device).eval()
        self.name = f"transformers {transformers.__version__} {o.compute}, " + ("compiled" if pad else "not compiled")

    def one(self, beam):
        how = dict(padding="max_length", max_length=self.pad, truncation=True) if self.pad else {}
        cache = dict(cache_implementation="static") if self.pad else {}

        def translate(text):
            with self.torch.inference_mode():
                given = self.tokenizer([text], return_tensors="pt", **how).to(self.device)
                ids = self.model.generate(**given, num_beams=beam, do_sample=False, max_length=None, max_new_tokens=self.pad or LIMIT, **cache)
            return self.tokenizer.decode(ids[0], skip_special_tokens=True)

        return translate


@contextlib.contextmanager
def served(o, beam):
    """A function that asks `saturate serve` over one connection."""
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([o.saturate, "serve", "--model", o.model, "--device", o.device, "--precision", o.precision,
                                   "--beam", str(beam), "--port", "0"], stderr=log)
        try:
            while not (found := re.search(r"listening on http://[^:]*:(\d+)", log.seek(0) or log.read())):
                if server.poll() is not None:
                    raise SystemExit("wrong: saturate serve: " + (log.seek(0) or log.read())[-300:])
                time.sleep(0.02)
            connection = http.client.HTTPConnection("127.0.0.1", int(found.group(1)))

            def ask(text):
                connection.request("POST", "/v1/translate", json.dumps({"texts": [text]}), {"Content-Type": "application/json"})
                return json.loads(connection.getresponse().read())["translations"][0]["text"]

            yield ask
        finally:
            server.terminate()
            server.wait(30)


@contextlib.contextmanager
def piped(o, beam):
    """A function that writes a line to `saturate translate` and reads one."""
    program = subprocess.Popen([o.saturate, "translate", "--model", o.model, "--device", o.device, "--precision", o.precision,
                                "--beam", str(beam), "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(text):
        program.stdin.write(text + "\n")
        program.stdin.flush()
        return program.stdout.readline().rstrip("\n")

    yield ask
    program.stdin.close()
    program.wait(30)


def whole_texts(o):
    lines = o.input.read_text().splitlines()
    peer = CTranslate2(o)
    split = [peer.pieces.split(line) for line in lines]
    few = o.scratch / "few"
    few.write_text("\n".join(lines[: o.check]) + "\n")
    print(f"figure: {len(lines)} lines, {sum(map(len, split))} source tokens", flush=True)
    for beam in o.beams:
        theirs, ours = {}, []
        peer.translate(split[:512], beam, o.batches[0])
        for batch in o.batches:
            begin = time.perf_counter()
            found = peer.translate(split, beam, batch)
            theirs[batch] = [time.perf_counter() - begin]
        best = min(theirs, key=lambda b: theirs[b][0])
        for turn in range(o.rounds):
            ours.append(run_saturate(o, beam, o.input, o.scratch / "out", o.precision))
            if turn:
                begin = time.perf_counter()
                peer.translate(split, beam, best)
                theirs[best].append(time.perf_counter() - begin)
        own = (o.scratch / "out").read_text().splitlines()
        other = [peer.pieces.target.decode(f) for f in found]
        run_saturate(o, beam, few, o.scratch / "exact", "fp32")
        exact = (o.scratch / "exact").read_text().splitlines()
        alike = [sum(a == b for a, b in zip(exact, x)) for x in (own, other)]
        a, b = statistics.median(ours), statistics.median(theirs[best])
        print(f"figure: whole text, beam {beam}: saturate {o.precision} {a:.2f} s, {peer.name} {b:.2f} s (batches of "
              + ", ".join(f"{k} tokens {v[0]:.2f}" for k, v in theirs.items()) + f"), ratio {b / a:.2f}", flush=True)
        verdict = "right" if min(alike) >= 0.9 * len(exact) and len(own) == len(other) == len(lines) else "wrong"
        print(f"{verdict}: whole text, beam {beam}: of {len(exact)} lines in fp32, ours in {o.precision} has {alike[0]} alike, "
              f"{peer.name} {alike[1]}; ours and theirs {sum(x == y for x, y in zip(own, other))} of {len(own)}", flush=True)


def latency(o, ask, name, beam, sentences):
    for text in sentences[:10]:
        ask(text)
    times, answers = [], []
    for text in sentences:
        begin = time.perf_counter()
        answers.append(ask(text))
        times.append(1e3 * (time.perf_counter() - begin))
    times.sort()
    exact = o.exact(beam)
    print(f"figure: one sentence, beam {beam}, {name}: p50 {times[len(times) // 2]:.2f} ms, p99 {times[int(len(times) * 0.99)]:.2f} ms, "
          f"{len(times)} sentences, {sum(a == b for a, b in zip(answers, exact))} as ours in fp32", flush=True)


def wait(o):
    if o.wait_for:
        Path(o.wait_for + ".ready").touch()
        while not os.path.exists(o.wait_for):
            time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", required=True)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--input", required=True, type=Path, help="the whole text")
    parser.add_argument("--single", type=Path, help="the text whose sentences go one at a time [--input]")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--precision", default="bf16", help="of saturate")
    parser.add_argument("--compute", default="float16", help="of the others")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--check", type=int, default=1000, help="lines that are translated in fp32 as well")
    parser.add_argument("--batches", type=int, nargs="+", default=[32768, 131072, 524288], help="source tokens of CTranslate2's batches")
    parser.add_argument("--pad", type=int, default=64, help="tokens of every source and translation where transformers is compiled")
    parser.add_argument("--only", nargs="*", default=["whole", "single", "eager", "compiled"],
                        help="whole: whole texts; single: one sentence, ours and CTranslate2; eager, compiled: transformers")
    parser.add_argument("--wait-for", help="when all is compiled write FILE.ready, and measure when FILE is there")
    o = parser.parse_args()
    o.folder = o.model / "model" if (o.model / "model").exists() else o.model
    o.scratch = Path(tempfile.mkdtemp())
    sentences = [s for s in (o.single or o.input).read_text().splitlines() if s][: o.sentences]
    (o.scratch / "single").write_text("\n".join(sentences) + "\n")
    known = {}

    def exact(beam):
        if beam not in known:
            run_saturate(o, beam, o.scratch / "single", o.scratch / "one", "fp32")
            known[beam] = (o.scratch / "one").read_text().splitlines()
        return known[beam]

    o.exact = exact
    made = {}
    if "compiled" in o.only:
        made["compiled"] = Transformers(o, o.pad)
        for beam in o.beams:
            ask = made["compiled"].one(beam)
            for text in sentences[:3]:
                ask(text)
    wait(o)
    if "whole" in o.only:
        whole_texts(o)
    if "single" in o.only:
        peer = CTranslate2(o)
        for beam in o.beams:
            with served(o, beam) as ask:
                latency(o, ask, f"saturate serve {o.precision}", beam, sentences)
            with piped(o, beam) as ask:
                latency(o, ask, f"saturate translate {o.precision}, a pipe", beam, sentences)
            latency(o, peer.one(beam), peer.name, beam, sentences)
    if "eager" in o.only:
        made["eager"] = Transformers(o, 0)
    for kind, peer in made.items():
        for beam in o.beams:
            # Not compiled it is several times slower: a fifth of the sentences tells enough.
            latency(o, peer.one(beam), peer.name, beam, sentences if kind == "compiled" else sentences[: len(sentences) // 5])


if __name__ == "__main__":
    main()
