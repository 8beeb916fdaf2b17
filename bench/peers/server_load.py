#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Poisson arrivals of sentences over many open HTTP connections; latency, rate and wrong answers.

python3 bench/peers/server_load.py --url http://127.0.0.1:8000 --text test.en --expected test.out --rates 50 100 200

Each request is one sentence to POST /v1/translate. Arrivals are those of a Poisson process (exponential gaps, seed 1) and do not
wait for answers; a sentence goes out on the first of --connections open connections that is free, and its latency counts from
its arrival. An answer that differs from the line of --expected is wrong. Prints one line of JSON a rate. Of --rates the largest
with p99 at most --p99 and no wrong or failed answer is the last line.
"""
import argparse
import asyncio
import json
import random
import time


async def ask(reader, writer, body):
    writer.write(b"POST /v1/translate HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                 % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


async def measure(args, rate, sentences, expected):
    host, port = args.url.split("//")[1].rstrip("/").split(":")
    arrivals, results = asyncio.Queue(), []

    async def connection():
        reader, writer = await asyncio.open_connection(host, int(port))
        while (item := await arrivals.get()) is not None:
            arrived, number = item
            body = json.dumps({"texts": [sentences[number]]}).encode()
            try:
                status, answer = await ask(reader, writer, body)
                text = json.loads(answer)["translations"][0]["text"] if status == 200 else None
            except (OSError, asyncio.IncompleteReadError):
                status, text = 0, None
                reader, writer = await asyncio.open_connection(host, int(port))
            results.append((time.perf_counter() - arrived, status, status == 200 and text != expected[number]))
        writer.close()

    clients = [asyncio.create_task(connection()) for _ in range(args.connections)]
    await asyncio.sleep(0.2)
    draw = random.Random(1)
    begin = when = time.perf_counter()
    number = 0
    while when < begin + args.seconds:
        when += draw.expovariate(rate)
        if (wait := when - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        arrivals.put_nowait((when, number % len(sentences)))
        number += 1
    for _ in clients:
        arrivals.put_nowait(None)
    await asyncio.gather(*clients)
    took = time.perf_counter() - begin
    times = sorted(r[0] for r in results)
    return {"rate": rate, "requests": number, "answered_per_s": round(sum(r[1] == 200 for r in results) / took, 1),
            "p50_ms": round(1e3 * times[len(times) // 2], 1), "p99_ms": round(1e3 * times[int(len(times) * 0.99)], 1),
            "wrong": sum(r[2] for r in results), "failed": sum(r[1] != 200 for r in results)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--text", required=True, help="sentences, one a line")
    parser.add_argument("--expected", required=True, help="what saturate translate, or the peer, makes of them offline")
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200, 400, 800], help="arrivals a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--p99", type=float, default=500, help="milliseconds")
    args = parser.parse_args()
    with open(args.text, encoding="utf8") as file:
        sentences = file.read().splitlines()
    with open(args.expected, encoding="utf8") as file:
        expected = file.read().split("\n")[:len(sentences)]
    best = 0
    for rate in args.rates:
        row = asyncio.run(measure(args, rate, sentences, expected))
        print(json.dumps(row), flush=True)
        if row["p99_ms"] > args.p99:
            break
        if row["wrong"] == row["failed"] == 0:
            best = row["answered_per_s"]
    print(json.dumps({"best_rate": best, "p99_limit_ms": args.p99}))


if __name__ == "__main__":
    main()
