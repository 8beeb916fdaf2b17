# SPDX-License-Identifier: Apache-2.0
"""github.com/gazprom-neft/seismiqb PR#19 and github.com/dingo-gw/dingo PR#55

The GPU waits for the data pipeline, although no stage of the pipeline looks heavy; the data are float32 anyway.

Cause: noise and constants default to float64, so the workers compute in twice the width and convert at the end
Line: waveforms_computed_in_float64.py:__getitem__ (in the workers)
Remedy: float32 from the generator to the batch
"""
import numpy
import torch

import blind
import training


class Waveforms(torch.utils.data.Dataset):
    """Signals in noise, whitened and scaled; `kind` is the type in which that is computed."""

    def __init__(self, samples, rows, width, kind):
        self.samples, self.kind = samples, kind
        rng = numpy.random.default_rng(11)
        self.signals = rng.standard_normal((8, rows, width), dtype=numpy.float32)
        self.spread = (1 + rng.random(width)).astype(kind)
        self.window = numpy.hanning(width).astype(kind)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        signal = self.signals[index % 8]
        noise = numpy.random.default_rng(index).standard_normal(signal.shape, dtype=self.kind)
        strain = (signal + noise * self.spread) * self.window
        strain = strain / self.spread
        strain = strain - strain.mean(axis=1, keepdims=True)
        strain = strain / numpy.sqrt((strain * strain).mean(axis=1, keepdims=True))
        strain = numpy.tanh(strain * strain.dtype.type(0.3))
        return torch.from_numpy(strain.astype(numpy.float32, copy=False))


def one_thread(_):
    torch.set_num_threads(1)


def main():
    loop = blind.Loop("waveforms_computed_in_float64", "input", steps=400)
    device = loop.device()
    rows, width = loop.size(768, 8), loop.size(4096, 32)
    views = loop.size(6, 2)
    model, optimizer = training.make_model(loop.size(48 if loop.variant == "healthy" else 16, 2), width, device)
    data = Waveforms(loop.steps + loop.warm_up + 1, rows, width, numpy.float64 if loop.planted else numpy.float32)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=loop.size(3, 1), worker_init_fn=one_thread,
                                         pin_memory=device.type == "cuda", prefetch_factor=4)
    batches, gaps, dtype = iter(loader), training.GpuGaps(loop, device), next(model.parameters()).dtype

    def step(_):
        strain = next(batches)
        gaps.begin()
        x = strain.to(device, non_blocking=True).to(dtype).repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
