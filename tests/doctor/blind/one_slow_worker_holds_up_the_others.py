# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/135409

I expected the loader to hand out the batches of any worker as soon as they are there. Instead it takes the workers in
turn, so where one of them has slow samples it holds up the training although the others have batches ready.

Cause: one of four workers has the long recordings, six times as long as those of the others. The loader asks the
workers in turn and waits for that one every fourth batch; the queues of the others are full meanwhile.
Line: one_slow_worker_holds_up_the_others.py:spectrum (in the workers)
Remedy: in_order=False: a batch is used as soon as it is there, and each worker does as much as it can.
"""
import numpy as np
import torch

import blind
import training


class Recordings(torch.utils.data.IterableDataset):
    """Batches of mean spectra without end; the first worker's recordings have more pieces."""

    def __init__(self, pieces, rows, width, longer):
        self.pieces, self.rows, self.width, self.longer = pieces, rows, width, longer
        self.window = np.hanning(2 * width * rows).astype(np.float32)

    def spectrum(self, rng, pieces):
        total = np.zeros(self.rows * self.width, np.float32)
        for _ in range(pieces):
            wave = rng.standard_normal(2 * self.rows * self.width, dtype=np.float32) * self.window
            total += np.log1p(np.abs(np.fft.rfft(wave)[1:])).astype(np.float32)
        return total.reshape(self.rows, self.width) / np.float32(pieces)

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = np.random.default_rng(worker.id)
        pieces = self.pieces * (self.longer if worker.id == 0 else 1)
        while True:
            yield torch.from_numpy(self.spectrum(rng, pieces))


def one_thread(_):
    torch.set_num_threads(1)


def main():
    loop = blind.Loop("one_slow_worker_holds_up_the_others", "input", steps=450)
    device = loop.device()
    healthy = loop.variant == "healthy"
    rows, width, views = loop.size(64, 2), loop.size(4096, 16), loop.size(256 if healthy else 64, 1)
    model, optimizer = training.make_model(loop.size(16, 2), width, device)
    if healthy:
        loop.steps = min(loop.steps, 300)
    # One piece is 524288 samples, about 15 ms of work.
    data = Recordings(1, rows, width, 1 if healthy else 6)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=loop.size(4, 2), prefetch_factor=4,
                                         worker_init_fn=one_thread, pin_memory=device.type == "cuda",
                                         in_order=loop.planted)
    batches, gaps, dtype = iter(loader), training.GpuGaps(loop, device), next(model.parameters()).dtype

    def step(_):
        spectra = next(batches)
        gaps.begin()
        x = spectra.to(device, non_blocking=True).to(dtype).repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
