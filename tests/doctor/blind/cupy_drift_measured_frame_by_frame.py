# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/issues/2271 (also cupy/cupy#8191, scikit-image/scikit-image#8200)

A program that was written for NumPy, and aligns images by their spectra, runs on CuPy with hardly a change, but
several of its calls take far longer than on the CPU, however often they are repeated.

Cause: the drift of a film is measured frame by frame: two dozen small kernels for each frame, which the host launches
more slowly than the GPU is done with them.
Line: cupy_drift_measured_frame_by_frame.py:drift
Remedy: all frames of a batch are transformed, compared and searched together.
"""
import numpy as np

import blind


def drift(xp, frame, wanted, window):
    """Where the correlation of a frame with the template is the largest, as a number."""
    product = xp.fft.fft2((frame - frame.mean()) * window) * wanted
    product = product / (xp.abs(product) + np.float32(1e-6))
    return xp.abs(xp.fft.ifft2(product)).argmax()


def drifts(xp, frames, wanted, window):
    product = xp.fft.fft2((frames - frames.mean(axis=(1, 2), keepdims=True)) * window) * wanted
    product /= xp.abs(product) + np.float32(1e-6)
    return xp.abs(xp.fft.ifft2(product)).reshape(len(frames), -1).argmax(axis=1)


def main():
    loop = blind.Loop("cupy_drift_measured_frame_by_frame", "launch")
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

    count, side = loop.size(64, 3), loop.size(768, 16)
    taper = xp.hanning(side).astype(xp.float32)
    window = taper[:, None] * taper[None, :]
    films = [random.standard_normal((count, side, side)).astype(xp.float32) for _ in range(2)]
    wanted = xp.conj(xp.fft.fft2(films[0][0] * window)).astype(xp.complex64)
    total = xp.zeros(count, dtype=xp.int64)

    def step(i):
        nonlocal total
        frames = films[i % len(films)]
        if loop.planted:
            found = xp.stack([drift(xp, frame, wanted, window) for frame in frames])
        else:
            found = drifts(xp, frames, wanted, window)
        total = total + found

    loop.run(step, wait)


if __name__ == "__main__":
    main()
