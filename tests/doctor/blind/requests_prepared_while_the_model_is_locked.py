# SPDX-License-Identifier: Apache-2.0
"""https://github.com/basetenlabs/truss/pull/145 (also rocketride-org/rocketride-server#1182, pytorch/serve#2898)

Our server answers requests in several threads. The utilisation of its GPU swings between nothing and everything, more
threads bring nothing, and most of the cores have nothing to do.

Cause: so that two threads never use the model at once, a whole prediction holds a lock, and that begins with unpacking
the picture. Of eight threads seven wait for the lock while one unpacks, and the GPU waits with them.
Line: requests_prepared_while_the_model_is_locked.py:prepared (called with the lock held by predict).
Remedy: the picture is unpacked before the lock is taken; then the threads do that side by side.
"""
import collections
import concurrent.futures
import threading
import time
import zlib

import numpy
import torch

import blind
import training

THREADS, WAITING = 8, 24  # of the server, and requests that are always on their way


def packed(side, seed):
    """A picture as a client sends it: grey, 16 levels of noise over a slope."""
    rng = numpy.random.default_rng(seed)
    slope = numpy.add.outer(numpy.arange(side), numpy.arange(side)) // 32
    return zlib.compress((slope + rng.integers(0, 16, (side, side))).astype(numpy.uint8).tobytes(), 1)


def prepared(request, side, edge):
    """(side, side) of the request to one row for each square of edge x edge pixels."""
    picture = numpy.frombuffer(zlib.decompress(request), dtype=numpy.uint8).reshape(side, side)
    cut = picture.reshape(side // edge, edge, side // edge, edge).transpose(0, 2, 1, 3)
    return torch.from_numpy(numpy.ascontiguousarray(cut).reshape(-1, edge * edge))


class Server:
    def __init__(self, model, device, side, edge, loop):
        self.model, self.device, self.side, self.edge, self.loop = model, device, side, edge, loop
        self.lock = threading.Lock()

    def answer(self, rows):
        with torch.inference_mode():
            return self.model(rows.to(self.device).to(torch.bfloat16)).float().mean(dim=0).cpu()

    def predict(self, request):
        if not self.loop.planted:
            rows = prepared(request, self.side, self.edge)
            with self.lock:
                return self.answer(rows)
        with self.lock:
            begin = time.perf_counter()
            rows = prepared(request, self.side, self.edge)
            self.loop.planted_ms.append(1e3 * (time.perf_counter() - begin))  # all that is on the GPU has been answered
            return self.answer(rows)


def main():
    loop = blind.Loop("requests_prepared_while_the_model_is_locked", "lock", steps=500, warm_up=40)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 200)
        return training.run_full_steps(loop, device)
    side, edge = loop.size(1536, 64), loop.size(24, 8)
    model, _ = training.make_wide(edge * edge, loop.size(4096, 16), device, groups=loop.size(8, 1))
    server = Server(model, device, side, edge, loop)
    requests = [packed(side, seed) for seed in range(8)]
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)
    sent = collections.deque()

    def step(i):
        while len(sent) < loop.size(WAITING, 2):
            sent.append(pool.submit(server.predict, requests[(i + len(sent)) % 8]))
        return sent.popleft().result()

    loop.run(step, blind.wait_for(device))
    pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
