#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CTranslate2 behind HTTP with a batching window, as people deploy it: the peer of `saturate serve` for server_load.py.

python3 bench/peers/ctranslate2_server.py --model ct2-folder --tokenizer folder-with-source.spm --port 8001
python3 bench/peers/ctranslate2_server.py ... --lines test.en > test.out      # offline, for --expected

Needs ctranslate2, sentencepiece and, from a Marian folder, ctranslate2's converter: ct2-transformers-converter --model ... Answers
POST /v1/translate {"texts": [one sentence]} as saturate does. Sentences that come within --window milliseconds, at most --batch,
are translated together in one call in a thread of its own.
"""
import argparse
import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import ctranslate2
import sentencepiece


class Model:
    def __init__(self, args):
        threads = {"inter_threads": args.inter, "intra_threads": args.intra} if args.device == "cpu" else {}
        self.translator = ctranslate2.Translator(args.model, device=args.device, compute_type=args.compute, **threads)
        self.source = sentencepiece.SentencePieceProcessor(model_file=args.tokenizer + "/source.spm")
        self.target = sentencepiece.SentencePieceProcessor(model_file=args.tokenizer + "/target.spm")
        self.beam = args.beam

    def translate(self, lines):
        tokens = [self.source.encode(line, out_type=str) + ["</s>"] for line in lines]
        results = self.translator.translate_batch(tokens, beam_size=self.beam, max_decoding_length=256)
        return [self.target.decode(r.hypotheses[0]) for r in results]


async def serve(args, model):
    queue, pool = asyncio.Queue(), ThreadPoolExecutor(max(1, args.inter))

    async def batches():
        loop = asyncio.get_running_loop()
        while True:
            batch = [await queue.get()]
            end = loop.time() + args.window / 1e3
            while len(batch) < args.batch and (left := end - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(queue.get(), left))
                except asyncio.TimeoutError:
                    break
            texts = await loop.run_in_executor(pool, model.translate, [line for line, _ in batch])
            for (_, future), text in zip(batch, texts):
                future.set_result(text)

    async def client(reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = next((int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.startswith(b"content-length:")), 0)
                future = asyncio.get_running_loop().create_future()
                queue.put_nowait((json.loads(await reader.readexactly(length))["texts"][0], future))
                body = json.dumps({"translations": [{"text": await future}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    workers = [asyncio.create_task(batches()) for _ in range(max(1, args.inter))]
    server = await asyncio.start_server(client, "127.0.0.1", args.port)
    print("listening", flush=True)
    await asyncio.gather(server.serve_forever(), *workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compute", default="default")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--window", type=float, default=5, help="milliseconds")
    parser.add_argument("--batch", type=int, default=64, help="sentences of a call")
    parser.add_argument("--inter", type=int, default=1, help="calls side by side")
    parser.add_argument("--intra", type=int, default=0, help="threads of one call on the CPU")
    parser.add_argument("--lines", help="translate this file to standard output instead")
    args = parser.parse_args()
    model = Model(args)
    if args.lines:
        with open(args.lines, encoding="utf8") as file:
            sys.stdout.write("".join(t + "\n" for t in model.translate(file.read().splitlines())))
        return
    asyncio.run(serve(args, model))


if __name__ == "__main__":
    main()
