# SPDX-License-Identifier: Apache-2.0
"""https://github.com/SuperDARNCanada/borealis/pull/310 (also numpy/numpy#9126)

Signals are filtered with CuPy, in single precision, as the receivers deliver them. It takes several times as long as it
should; faster back ends for sums and products were tried first and gave a quarter.

Cause: the filters were made on the host, where frequencies and windows come in double precision; the first product with
one widens the field to complex128, and all transforms and products after it move twice the bytes.
Line: cupy_filters_widen_the_field.py:propagate
Remedy: the filters are narrowed to single precision once, when they are made.
Trap: the field is complex64 when it enters; a look at the input finds nothing.
"""
import numpy as np

import blind


def make_filters(side, screens):
    """What the space between two screens does to each frequency, and a window that takes away what leaves the field."""
    frequencies = np.fft.fftfreq(side)
    squares = frequencies[:, None]**2 + frequencies[None, :]**2
    transfers = [np.exp(-1j * np.pi * (20 + 5 * n) * squares) for n in range(screens)]
    edge = np.hanning(side)**0.05
    return transfers, edge[:, None] * edge[None, :]


def propagate(xp, field, transfers, window):
    for transfer in transfers:
        field = xp.fft.ifft2(xp.fft.fft2(field) * transfer) * window
    return field


def main():
    loop = blind.Loop("cupy_filters_widen_the_field", "precision")
    try:
        import cupy as xp

        on_gpu = xp.is_available()
    except ImportError:
        on_gpu = False
    if not on_gpu:
        if not loop.small:
            raise SystemExit(f"{loop.name}: needs CuPy and a GPU (pip install cupy-cuda13x)")
        import numpy as xp  # enough to see that the program runs
    random = xp.random.RandomState(0)
    wait = xp.cuda.Device().synchronize if on_gpu else lambda: None

    if loop.variant == "healthy":  # large products only
        side = loop.size(12288, 64)
        left, right = (random.standard_normal((side, side)).astype(xp.float16) for _ in range(2))
        return loop.run(lambda i: (left @ right, right @ left), wait)

    side, screens = loop.size(4096, 32), loop.size(5, 2)
    transfers, window = make_filters(side, screens)
    if not loop.planted:
        transfers, window = [t.astype(np.complex64) for t in transfers], window.astype(np.float32)
    transfers, window = [xp.asarray(t) for t in transfers], xp.asarray(window)
    sources = []
    for _ in range(4):
        real, imaginary = (random.standard_normal((side, side)).astype(xp.float32) for _ in range(2))
        sources.append((real + 1j * imaginary).astype(xp.complex64))
    del real, imaginary
    total = xp.zeros((), dtype=xp.float64)

    def step(i):
        nonlocal total
        field = propagate(xp, sources[i % len(sources)], transfers, window)
        total = total + xp.abs(field[side // 2]).sum()  # what a row of sensors sees

    loop.run(step, wait)


if __name__ == "__main__":
    main()
