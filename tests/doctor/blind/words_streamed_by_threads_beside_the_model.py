# SPDX-License-Identifier: Apache-2.0
"""https://github.com/vllm-project/vllm/pull/7402 (measured elsewhere: ROCm/ATOM#2161)

A server streams what the model says, to hundreds of users at a time. Text and events are made in threads beside the
loop of the model, so that it need not wait; yet the GPU stands still between two steps, longer with more users.

Cause: the threads hold the interpreter's lock while they turn tokens into events, just when the loop wants to launch
the next step: each call that gives the lock away has to wait for it again.
Line: words_streamed_by_threads_beside_the_model.py:serve
Remedy: the same work in processes of their own, each with an interpreter's lock of its own.
Trap: the work is off the loop already, and more threads for it change nothing.
"""
import json
import multiprocessing
import queue
import threading

import torch

import blind
import training

SERVERS = 2
WORDS = 8192


def events_of(tokens, said):
    """Server-sent events for a token of each user; `said` is what each has been sent so far."""
    events = []
    for user, token in enumerate(tokens):
        piece = f" w{token:x}"
        text = said[user] = (said[user] + piece)[-200:]
        ended = any(text.endswith(stop) for stop in ("\n\n", "###", "</s>", "User:"))
        delta = {"role": "assistant", "content": piece.replace("\u2581", " ")}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop" if ended else None}
        body = {"id": f"answer-{user}", "object": "chat.completion.chunk", "model": "small", "choices": [choice]}
        events.append("data: " + json.dumps(body, ensure_ascii=False) + "\n\n")
    return events


def serve(inbox, users):
    """Makes the events of all that comes in; they go to the sockets of the users, which stay away here."""
    said, sent = [""] * users, 0
    while (tokens := inbox.get()) is not None:
        sent += sum(map(len, events_of(tokens, said)))


def main():
    loop = blind.Loop("words_streamed_by_threads_beside_the_model", "lock")
    users, width = loop.size(512, 4), loop.size(8192, 16)
    inboxes, servers = [], []
    if loop.variant != "healthy":
        context = multiprocessing.get_context("fork")  # before anything of CUDA
        for _ in range(SERVERS):
            inbox = queue.SimpleQueue() if loop.planted else context.SimpleQueue()
            start = threading.Thread if loop.planted else context.Process
            servers.append(start(target=serve, args=(inbox, users // SERVERS), daemon=True))
            servers[-1].start()
            inboxes.append(inbox)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    with torch.device(device):
        enter = torch.nn.Embedding(WORDS, width).to(torch.bfloat16)
        leave = torch.nn.Linear(width, loop.size(WORDS, 64), bias=False).to(torch.bfloat16)
        tokens = torch.zeros(users, dtype=torch.int64)
    network, _ = training.make_wide(width, width, device, groups=loop.size(12, 1))
    network.head = leave

    @torch.no_grad()
    def step(i):
        nonlocal tokens
        scores = network(enter(tokens))
        tokens = torch.multinomial(scores.float().softmax(dim=-1), 1)[:, 0]
        said = tokens.tolist()
        for n, inbox in enumerate(inboxes):
            inbox.put(said[n::SERVERS])

    loop.run(step, blind.wait_for(device))
    for inbox in inboxes:
        inbox.put(None)
    for server in servers:
        server.join(10)


if __name__ == "__main__":
    main()
