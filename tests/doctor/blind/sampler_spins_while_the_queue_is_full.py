# SPDX-License-Identifier: Apache-2.0
"""https://github.com/ray-project/ray/pull/16162 (also Unity-Technologies/ml-agents#3817)

Reinforcement learning trains extremely slowly as soon as the queue of samples is full, on the GPU of all places, where
the learner ought to have all that it needs at hand. When the queue is nearly empty each update is quick.

Cause: a thread that has samples to hand over asks without a pause whether there is room for them; it holds the
interpreter all that time, and the learner waits for it between its launches.
Line: sampler_spins_while_the_queue_is_full.py:hand_over (in the sampling thread)
Remedy: a put that sleeps until there is room.
"""
import queue
import threading
import time

import numpy as np
import torch

import blind
import training


class Sampler:
    """Plays with a simulator that is quick, in a thread of its own, and hands over what it saw."""

    def __init__(self, rows, width, spin):
        self.samples, self.spin, self.stop = queue.Queue(8), spin, threading.Event()
        self.seen = np.random.default_rng(3).standard_normal((rows + 64, width), dtype=np.float32)
        self.rows, self.asked = rows, 0
        self.thread = threading.Thread(target=self.play, daemon=True)

    def play(self):
        turn = 0
        while not self.stop.is_set():
            self.hand_over(torch.from_numpy(self.seen[turn % 64:turn % 64 + self.rows]))
            turn += 1

    def hand_over(self, sample):
        while self.spin and self.samples.full() and not self.stop.is_set():
            self.asked += 1
        while not self.stop.is_set():
            try:
                return self.samples.put(sample, timeout=0.2)
            except queue.Full:
                pass


def main():
    loop = blind.Loop("sampler_spins_while_the_queue_is_full", "lock", steps=250)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    rows, width = loop.size(256, 8), loop.size(4096, 16)
    worlds = loop.size(64 if healthy else 16, 1)  # each sample is judged with so many kinds of noise
    if healthy:
        loop.steps = min(loop.steps, 150)
        model, optimizer = training.make_wide(width, loop.size(8192, 16), device, groups=2)
    else:
        model, optimizer = training.make_model(loop.size(16, 2), width, device)
    dtype = next(model.parameters()).dtype
    x = torch.zeros(rows, width, device=device)
    noise = 0.01 * torch.randn(rows * worlds, width, device=device).to(dtype)

    def update():
        training.train(model, optimizer, x.to(dtype).repeat(worlds, 1) + noise)

    update = training.recorded(update, device)  # a small number of calls for each step, as fast learners have
    sampler = Sampler(rows, width, loop.planted)
    staged = torch.empty(rows, width, pin_memory=device.type == "cuda")
    copied = torch.cuda.Event() if device.type == "cuda" else None

    def learn(sample):
        if copied is not None:
            copied.synchronize()  # the sample before has left `staged`; one update is still to be done meanwhile
        staged.copy_(sample)
        x.copy_(staged, non_blocking=True)
        if copied is not None:
            copied.record()
        update()

    wait = blind.wait_for(device)
    blind.take_gpu()
    alone = torch.from_numpy(sampler.seen[:rows])
    for turns in (5, 20):
        begin = time.perf_counter()
        for _ in range(turns):
            learn(alone)
        wait()
    alone_ms = 1e3 * (time.perf_counter() - begin) / 20
    sampler.thread.start()
    latest = time.perf_counter()

    def step(i):
        nonlocal latest
        learn(sampler.samples.get())
        if loop.planted and i % 10 == 9:  # what ten steps took longer than they do with no other thread
            wait()
            now = time.perf_counter()
            loop.planted_ms.append(max(0.0, 1e3 * (now - latest) / 10 - alone_ms))
            latest = now

    loop.run(step, wait)
    sampler.stop.set()
    sampler.thread.join()


if __name__ == "__main__":
    main()
