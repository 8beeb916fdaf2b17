# SPDX-License-Identifier: Apache-2.0
"""https://github.com/SYSTRAN/faster-whisper/pull/1038 (also beer-asr/beer#10, PR#1113 of the first)

The spectrograms that my audio model learns from are computed on the fly, by eight workers that are busy all the time.
A transform of a second of sound is quick, but the workers don't keep up.

Cause: the bank of filters that turns a spectrum into mel bands is built anew for every clip, filter by filter in
Python, and with it the window, although they only depend on settings that never change.
Line: mel_filters_built_for_every_clip.py:mel_filters (called by spectrogram).
Remedy: each worker builds the bank and the window once and keeps them.
"""
import functools
import math

import numpy
import torch

import blind
import training

RATE, TRANSFORM, HOP = 16000, 2048, 256


def mel(frequency):
    return 2595.0 * math.log10(1.0 + frequency / 700.0)


def hertz(value):
    return 700.0 * (10.0 ** (value / 2595.0) - 1.0)


def mel_filters(bands):
    """(bands, TRANSFORM // 2 + 1): triangles whose corners are evenly spaced in mel, each of area one."""
    lowest, highest = mel(30.0), mel(RATE / 2)
    corners = [hertz(lowest + (highest - lowest) * n / (bands + 1)) for n in range(bands + 2)]
    bins = numpy.linspace(0.0, RATE / 2, TRANSFORM // 2 + 1)
    filters = numpy.zeros((bands, len(bins)), dtype=numpy.float32)
    for n in range(bands):
        left, top, right = corners[n:n + 3]
        rises, falls = (bins - left) / (top - left), (right - bins) / (right - top)
        filters[n] = numpy.maximum(0.0, numpy.minimum(rises, falls)) * (2.0 / (right - left))
    return filters


def window():
    return numpy.array([0.5 - 0.5 * math.cos(2 * math.pi * n / TRANSFORM) for n in range(TRANSFORM)], numpy.float32)


kept_filters, kept_window = functools.cache(mel_filters), functools.cache(window)


def spectrogram(sound, bands, keep):
    """(frames, bands), in decibels."""
    filters, shape = (kept_filters(bands), kept_window()) if keep else (mel_filters(bands), window())
    frames = numpy.lib.stride_tricks.sliding_window_view(sound, TRANSFORM)[::HOP]
    power = numpy.abs(numpy.fft.rfft(frames * shape, axis=1)).astype(numpy.float32) ** 2
    return 10.0 * torch.log10(torch.from_numpy(power) @ torch.from_numpy(filters).T + 1e-6)


class Clips(torch.utils.data.Dataset):
    def __init__(self, count, samples, bands, keep):
        self.count, self.samples, self.bands, self.keep = count, samples, bands, keep
        self.sounds = numpy.random.default_rng(0).standard_normal((64, samples), dtype=numpy.float32)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return spectrogram(self.sounds[i % 64], self.bands, self.keep)


def one_thread(_):
    torch.set_num_threads(1)


def main():
    loop = blind.Loop("mel_filters_built_for_every_clip", "input", steps=300)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    batch, samples, bands = loop.size(24, 2), loop.size(16000, 4096), loop.size(229, 16)
    data = Clips(batch * (loop.warm_up + loop.steps), samples, bands, keep=not loop.planted)
    loader = torch.utils.data.DataLoader(data, batch, num_workers=loop.size(8, 1), pin_memory=device.type == "cuda",
                                         worker_init_fn=one_thread)
    batches = iter(loader)
    model, optimizer = training.make_wide(bands, loop.size(4096, 16), device, groups=loop.size(12, 1))
    gaps = training.GpuGaps(loop, device)

    def step(i):
        taken = next(batches)
        gaps.begin()
        x = taken.to(device, non_blocking=True).flatten(0, 1)
        training.train(model, optimizer, (x / 40).to(torch.bfloat16))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
