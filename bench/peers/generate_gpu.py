#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continuing texts on a GPU beside transformers with a static cache, compiled: tokens a second and the time to the first token.

    pip install torch transformers
    python3 bench/peers/generate_gpu.py --saturate build/bin/saturate --shape gpt2 --folder FOLDER [--streams 1 64]
    python3 bench/peers/generate_gpu.py ... --only theirs --wait-for FILE    # compiles, then waits for FILE before it measures

The model has random weights in the shape of GPT-2 124M or of Llama 3.2 1B; transformers makes it and writes FOLDER (where it is
not there yet). Prompts are 512 random tokens, continuations 128 tokens, greedy (or --sample), no end. Ours are streamed by `saturate serve` over
a connection for each text, all asked at once; the first token counts from the request to its arrival at the client. theirs is one
call of generate() for all texts; its first token is that of the same call with one token to make. Medians of --rounds.
"""
import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

PROMPT, NEW = 512, 128
SAMPLING = {"temperature": 0.8, "top_p": 0.95, "top_k": 0}


def make(o):
    import torch
    import transformers

    if o.shape == "gpt2":
        config = transformers.GPT2Config()
        kind = transformers.GPT2LMHeadModel
    else:
        config = transformers.LlamaConfig(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, head_dim=64, max_position_embeddings=4096, tie_word_embeddings=True, rms_norm_eps=1e-5,
            bos_token_id=128000, eos_token_id=128001)
        kind = transformers.LlamaForCausalLM
    if o.tiny:
        for key in ("num_hidden_layers", "n_layer"):
            if hasattr(config, key):
                setattr(config, key, 2)
    torch.manual_seed(1)
    with torch.device(o.device):
        model = kind(config).to(getattr(torch, o.precision))
    os.makedirs(o.folder + ".part", exist_ok=True)
    model.save_pretrained(o.folder + ".part")
    os.rename(o.folder + ".part", o.folder)


def prompts(count):
    import random

    draw = random.Random(7)
    return [[draw.randrange(1000, 50000) for _ in range(PROMPT)] for _ in range(count)]


async def ask(port, prompt, new, draw):
    """(seconds to the first token, to the last, text)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    body = json.dumps({"prompt": prompt, "max_tokens": new, "stream": True, "ignore_eos": True, **draw}).encode()
    begin = time.perf_counter()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\n"
                 b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    first, parts = None, []
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            text = json.loads(line[6:])["choices"][0]["text"]
            if text and first is None:
                first = time.perf_counter() - begin
            parts.append(text)
        elif b"error" in line:
            raise SystemExit(f"wrong: saturate serve: {line[:300]}")
    last = time.perf_counter() - begin
    writer.close()
    if first is None:
        raise SystemExit(f"wrong: saturate serve sent no token for a prompt of {len(prompt)}")
    return first, last, "".join(parts)


def ours(o, streams):
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([o.saturate, "serve", "--model", o.folder, "--ids", "--device", o.device, "--precision", o.ours,
                                   "--sequences", str(streams), "--max-length", str(PROMPT + NEW), "--port", "0"], stderr=log)
        try:
            while not (found := re.search(r"listening on http://[^:]*:(\d+)", log.seek(0) or log.read())):
                if server.poll() is not None:
                    raise SystemExit("wrong: saturate serve: " + (log.seek(0) or log.read())[-300:])
                time.sleep(0.05)
            port, given = int(found.group(1)), prompts(streams)
            draw = {"temperature": SAMPLING["temperature"], "top_p": SAMPLING["top_p"]} if o.sample else {"temperature": 0}

            async def all_at_once():
                begin = time.perf_counter()
                answers = await asyncio.gather(*(ask(port, p, NEW, draw) for p in given))
                return time.perf_counter() - begin, answers

            asyncio.run(all_at_once())
            rounds = [asyncio.run(all_at_once()) for _ in range(o.rounds)]
        finally:
            server.terminate()
            server.wait(30)
    total = statistics.median(r[0] for r in rounds)
    first = statistics.median(statistics.median(a[0] for a in r[1]) for r in rounds)
    latest = statistics.median(max(a[0] for a in r[1]) for r in rounds)
    tokens = [[int(t) for t in a[2].split()] for a in rounds[-1][1]]
    if any(len(t) != NEW for t in tokens):
        print(f"wrong: {o.shape}, {streams} streams: {min(map(len, tokens))} to {max(map(len, tokens))} tokens came, not {NEW}", flush=True)
    report(o, streams, f"saturate serve {o.ours}{', sampled' if o.sample else ''}", total, first, latest)
    Path(o.folder + f".{streams}.json").write_text(json.dumps({"total": total, "first": first, "tokens": tokens}))


def report(o, streams, name, total, first, latest):
    print(f"figure: {o.shape}, {streams} streams, {name}: {streams * NEW / total:.0f} tokens/s over all, first token p50 "
          f"{1e3 * first:.1f} ms, latest {1e3 * latest:.1f} ms, then {streams * (NEW - 1) / (total - first):.0f} tokens/s", flush=True)


class Theirs:
    def __init__(self, o, streams):
        import torch
        import transformers

        self.o, self.streams, self.torch = o, streams, torch
        torch._dynamo.reset()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(o.folder, dtype=getattr(torch, o.precision)).to(o.device).eval()
        self.ids = torch.tensor(prompts(streams), device=o.device)
        self.name = f"transformers {transformers.__version__} {o.precision}, static cache, compiled{', sampled' if o.sample else ''}"
        for _ in range(2):  # the second call finds what the first compiled
            self.run(NEW)
        self.run(1)

    def run(self, new):
        begin = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(self.ids, attention_mask=self.torch.ones_like(self.ids), max_new_tokens=new, min_new_tokens=new,
                                      cache_implementation="static", pad_token_id=0, do_sample=self.o.sample,
                                      **(SAMPLING if self.o.sample else {}))
        if self.o.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter() - begin, out[:, PROMPT:].tolist()

    def measure(self):
        o, streams = self.o, self.streams
        self.run(NEW)
        whole = [self.run(NEW) for _ in range(o.rounds)]
        total, tokens = statistics.median(w[0] for w in whole), whole[-1][1]
        first = statistics.median(self.run(1)[0] for _ in range(o.rounds))
        report(o, streams, self.name, total, first, first)
        path = Path(o.folder + f".{streams}.json")
        if not path.exists():
            return
        own = json.loads(path.read_text())
        print(f"figure: {o.shape}, {streams} streams: {total / own['total']:.2f} times their tokens a second, first token in "
              f"{own['first'] / first:.2f} of their time", flush=True)
        if o.sample:
            return
        same = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), NEW) for x, y in zip(own["tokens"], tokens)]
        verdict = "right" if sum(s > 0 for s in same) >= 0.8 * streams else "wrong"
        print(f"{verdict}: {o.shape}, {streams} streams: first token alike in {sum(s > 0 for s in same)} texts of {streams}, "
              f"median of tokens alike from the start {statistics.median(same):g} of {NEW} (16-bit rounding decides between near equals)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", required=True)
    parser.add_argument("--shape", choices=["gpt2", "llama-1b"], required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bfloat16", help="of transformers")
    parser.add_argument("--ours", default="bf16", help="precision of saturate")
    parser.add_argument("--tiny", action="store_true", help="two layers, to try this script")
    parser.add_argument("--sample", action="store_true", help=f"draw tokens ({SAMPLING}) where else the likeliest is taken")
    parser.add_argument("--only", choices=["make", "ours", "theirs"])
    parser.add_argument("--wait-for", help="when all is compiled write FILE.ready, and measure when FILE is there")
    o = parser.parse_args()
    if not os.path.exists(o.folder):
        make(o)
    if o.only in (None, "ours"):
        for streams in o.streams:
            ours(o, streams)
    if o.only in (None, "theirs"):
        for streams in o.streams:  # one after another: compiled code is kept for one shape
            peer = Theirs(o, streams)
            if o.wait_for:
                Path(o.wait_for + ".ready").touch()
                while not os.path.exists(o.wait_for):
                    time.sleep(0.02)
            peer.measure()
            del peer


if __name__ == "__main__":
    main()
