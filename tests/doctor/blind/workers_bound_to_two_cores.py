# SPDX-License-Identifier: Apache-2.0
"""https://github.com/ultralytics/ultralytics/pull/11195 (also pytorch/pytorch#101850, pytorch/pytorch#8126)

I noticed while training that only 2 of my cores are being utilised, although I configured eight workers. More workers
change nothing; all of them run on the same cores, and loading the data is very slow.

Cause: something that was set up before has bound the process to two cores, and the workers inherit that, so eight of
them take turns on two cores while the other cores are idle.
Line: workers_bound_to_two_cores.py:__getitem__ (in the workers)
Remedy: each worker first sets its affinity to all cores that there are.
"""
import os

import numpy as np
import torch

import blind
import training


def bind_main(cores):
    """What a library does that wants its own threads to stay together; nobody asked it to bind what is forked later."""
    os.sched_setaffinity(0, cores)


class Unbound:
    """What a worker does first: it may run on any of these cores."""

    def __init__(self, cores):
        self.cores = cores

    def __call__(self, worker):
        os.sched_setaffinity(0, self.cores)


class Recordings(torch.utils.data.Dataset):
    """The logarithmic spectrum of each piece of a recording, by one thread."""

    def __init__(self, samples, pieces, width):
        self.samples, self.pieces, self.width = samples, pieces, width
        self.waves = np.random.default_rng(4).standard_normal((16, pieces * width * 2), dtype=np.float32)
        self.window = np.hanning(2 * width).astype(np.float32)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        wave = np.roll(self.waves[index % len(self.waves)], int(rng.integers(self.width)))
        wave = wave + np.float32(0.01) * rng.standard_normal(wave.shape, dtype=np.float32)
        pieces = wave.reshape(self.pieces, 2 * self.width) * self.window
        power = np.abs(np.fft.rfft(pieces, axis=1)[:, :self.width]) ** 2
        return torch.from_numpy(np.log1p(power).astype(np.float32)).bfloat16()


def main():
    loop = blind.Loop("workers_bound_to_two_cores", "threads", steps=250)
    device = loop.device()
    cores = os.sched_getaffinity(0)
    healthy = loop.variant == "healthy"
    pieces, width, batch = loop.size(8, 2), loop.size(4096, 32), loop.size(24, 2)
    if healthy:
        loop.steps = min(loop.steps, 200)
        model, optimizer = training.make_wide(width, loop.size(8192, 16), device, groups=2)
    else:
        model, optimizer = training.make_model(loop.size(24, 2), width, device)
    views = loop.size(64 if healthy else 16, 1)  # of each recording, with other noise
    dtype = next(model.parameters()).dtype

    def work(spectra):
        x = spectra.to(dtype).flatten(0, 1).repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))

    span = training.GpuSpan(loop, device)
    if loop.planted:  # what the GPU takes for a step that nothing holds up
        blind.take_gpu()
        spectra = torch.randn(batch, pieces, width, device=device)
        span.due = span.queued(lambda: work(spectra))
    bind_main(set(sorted(cores)[:2]))
    data = Recordings((loop.steps + loop.warm_up + 1) * batch, pieces, width)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(8, 2), drop_last=True,
                                         pin_memory=device.type == "cuda", prefetch_factor=4,
                                         worker_init_fn=None if loop.planted else Unbound(cores))
    batches = iter(loader)

    def step(_):
        work(next(batches).to(device, non_blocking=True))
        span.end()
        span.begin()  # from the end of one step to the end of the next: the training process is slowed down as well

    span.begin()
    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
