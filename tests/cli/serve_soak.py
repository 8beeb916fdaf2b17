#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many requests of all kinds against `saturate serve`, good and bad, some slow or cut off: nothing may leak, crash or go unanswered.

python3 tests/cli/serve_soak.py build-asan/bin/saturate --translation runs/ende --language runs/lm --requests 100000

No test of ctest: minutes. Starts the server (build it with the preset asan), sends the requests over --connections connections that
are opened anew now and then, ends it with SIGTERM and prints one line of JSON: answers by status, resident memory after each twentieth
of the requests. With --options "--queue 4 --max-length 12" some find the queue full, and answers are short. Exit code 1 when
something was wrong.
"""
import argparse
import asyncio
import collections
import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time


def request(path, body=b"", method="POST", kind="application/json"):
    return (f"{method} {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body


def draw(rng):
    """A request, the statuses that answer it, whether the client goes before the answer ends, and whether it is slow."""
    text = "".join(rng.choice("abcdefg ") for _ in range(rng.randint(1, 12)))
    many = json.dumps({"texts": [text] * rng.randint(1, 3), "nbest": rng.randint(1, 3)}).encode()
    words = json.dumps({"prompt": text, "max_tokens": rng.randint(1, 5), "n": rng.randint(1, 2), "stream": rng.random() < .5}).encode()
    long = json.dumps({"prompt": text, "max_tokens": 500, "stream": True, "ignore_eos": True}).encode()
    chat = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 3}).encode()
    done = (200, 429, 504)  # or the queue is full, or a loaded machine reaches the deadline
    cases = [
        (14, request("/v1/translate", many), done, False),
        (6, request("/translate", f"q={text}&source=en&target=pt&alternatives=1".encode(), kind="application/x-www-form-urlencoded"),
         done, False),
        (10, request("/v1/completions", words), done, False),
        (4, request("/v1/chat/completions", chat), done, False),
        (4, request("/v1/completions", long), done, True),
        (3, request("/v1/translate", many), done, True),
        (10, request("/v1/translate", many[:-2]), (400,), False),
        (10, request("/v1/completions", b'{"prompt": 1.5}'), (400,), False),
        (5, request("/translate", bytes(rng.randrange(256) for _ in range(40))), (400,), False),
        (5, request("/v1/translate", b"[" * 500), (400,), False),
        (5, request("/none"), (404,), False),
        (5, request("/v1/models", method="DELETE"), (405,), False),
        (4, b"POST /v1/translate HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n", (413,), False),
        (4, bytes(rng.randrange(256) for _ in range(60)) + b"\r\n\r\n", (400, 414, 505), False),
        (3, b"POST /v1/translate HTTP/1.1\r\nHost: h\r\nContent-Le", (), True),
        (4, request("/metrics", method="GET"), (200,), False),
        (4, request("/health", method="GET"), (200,), False),
    ]
    _, data, statuses, leaves = rng.choices(cases, [c[0] for c in cases])[0]
    return data, statuses, leaves, rng.random() < .03


async def read_answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower()
    if "transfer-encoding: chunked" in head:
        while (size := int((await reader.readline()).split(b";")[0], 16)) > 0:
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        await reader.readexactly(int(re.search(r"content-length: (\d+)", head)[1]))
    return int(head[9:12]), "connection: close" in head


async def client(port, rng, counts, left, problems):
    reader = writer = None
    while left[0] > 0:
        left[0] -= 1
        data, statuses, leaves, slow = draw(rng)
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for piece in [data[:9], data[9:40], data[40:]] if slow else []:
                writer.write(piece)
                await asyncio.sleep(.05)
            counts["slow"] += slow
            if not slow:
                writer.write(data)
            if leaves:
                await asyncio.sleep(rng.random() * .01)
                counts["left"] += 1
                closed = True
            else:
                status, closed = await asyncio.wait_for(read_answer(reader), 120)
                counts[status] += 1
                if status not in statuses:
                    problems.append((status, data[:200]))
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as e:
            closed = True
            problems.append((type(e).__name__, data[:200]))
        if closed or rng.random() < .02:
            writer.close()
            writer = None


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--translation", required=True)
    parser.add_argument("--language", required=True)
    parser.add_argument("--requests", type=int, default=100000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--options", default="", help="more of the server")
    args = parser.parse_args()
    server = subprocess.Popen([args.program, "serve", "--device", "cpu", "--port", "0", "--model", f"mt={args.translation}", "--languages",
                               "mt=en-pt", "--beam", "3", "--model", f"lm={args.language}", *shlex.split(args.options)],
                              stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"listening on http://.*:(\d+)", line):
            break
    port, counts, problems, left = int(found[1]), collections.Counter(), [], [args.requests]
    begun = time.time()

    async def run():
        clients = [asyncio.create_task(client(port, random.Random(i), counts, left, problems)) for i in range(args.connections)]
        curve = []
        for part in range(19, 0, -1):
            while left[0] > args.requests * part / 20:
                await asyncio.sleep(.05)
            curve.append(resident_mib(server.pid))
            print(f"{args.requests - left[0]} requests, {curve[-1]:.0f} MiB, {time.time() - begun:.0f} s", file=sys.stderr, flush=True)
        await asyncio.gather(*clients)
        return [*curve, resident_mib(server.pid)]

    curve = asyncio.run(run())
    server.send_signal(signal.SIGTERM)
    errors = server.stderr.read()
    code = server.wait(60)
    print(json.dumps({"requests": args.requests, "seconds": round(time.time() - begun), "answers": {str(k): v for k, v in sorted(counts.items(), key=str)},
                      "resident_mib": [round(m) for m in curve], "exit_code": code, "problems": len(problems)}))
    for problem in problems[:5]:
        print("problem:", problem, file=sys.stderr)
    if "Sanitizer" in errors:
        print(errors, file=sys.stderr)
    return 1 if code != 0 or problems or "Sanitizer" in errors else 0


if __name__ == "__main__":
    sys.exit(main())
