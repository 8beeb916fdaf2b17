# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/issues/9813 (what becomes of pinned memory: cupy/cupy#7532)

I give a slice of a NumPy array to the function that puts arrays on the GPU. It takes much longer than for a whole
array of that size, and while it runs the memory of the host grows by more than the array. When I copy the slice to
pinned memory myself first, it's a lot faster.

Cause: a slice is not contiguous, so it is first copied to a new array of its own, whose pages the system has to find
and clear each time; from there it's copied once more, to pinned memory. All of it on one core, and the GPU waits.
Line: cupy_cropped_frames_copied_twice.py:sent
Remedy: the slice is copied straight to pinned memory that was set aside for it.
"""
import numpy

import blind


def sent(cupy, frames):
    return cupy.asarray(frames)


class Staged:
    """Two pinned arrays in turn, each of them free again once its copy to the GPU is done."""

    def __init__(self, cupy, shape, dtype):
        import cupyx

        self.cupy = cupy
        self.arrays = [cupyx.empty_pinned(shape, dtype) for _ in range(2)]
        self.there = [cupy.empty(shape, dtype) for _ in range(2)]
        self.done = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]

    def sent(self, frames, i):
        array, there, done = (each[i % 2] for each in (self.arrays, self.there, self.done))
        done.synchronize()  # of the copy two steps ago
        numpy.copyto(array, frames)
        there.set(array)
        done.record()
        return there


def main():
    loop = blind.Loop("cupy_cropped_frames_copied_twice", "copy", steps=300)
    try:
        import cupy
    except ImportError:
        raise SystemExit(f"{loop.name}: needs CuPy (pip install cupy-cuda13x)")
    if not cupy.is_available():
        raise SystemExit(f"{loop.name}: no GPU; CuPy has no other device")
    wait = cupy.cuda.Device().synchronize
    random = cupy.random.RandomState(0)

    if loop.variant == "healthy":
        # Frames that are on the GPU already are projected onto many patterns.
        rows, columns = loop.size(16384, 64), loop.size(8192, 64)
        bank = (random.standard_normal((columns, columns), dtype=cupy.float32) / columns**0.5).astype(cupy.float16)
        start = state = random.standard_normal((rows, columns), dtype=cupy.float32).astype(cupy.float16)

        def step(i):
            nonlocal state
            state = start if i % 10 == 0 else state  # rounding would add up otherwise
            for _ in range(loop.size(5, 1)):
                state = state @ bank

        return loop.run(step, wait)

    count, side, crop = loop.size(16, 2), loop.size(2048, 64), loop.size(1536, 32)
    edge = (side - crop) // 2
    recorded = numpy.random.default_rng(0).integers(0, 4096, (4 * count, side, side), dtype=numpy.uint16)
    dark = cupy.asarray(recorded[:count, :crop, :crop]).mean(axis=0).astype(cupy.float32)
    bank = (random.standard_normal((crop, crop), dtype=cupy.float32) / crop**0.5).astype(cupy.float16)
    staged = None if loop.planted else Staged(cupy, (count, crop, crop), recorded.dtype)
    total = cupy.zeros((crop, crop), dtype=cupy.float32)

    def step(i):
        at = i % 4 * count
        frames = recorded[at:at + count, edge:edge + crop, edge:edge + crop]  # what is lit of the sensor
        there = sent(cupy, frames) if loop.planted else staged.sent(frames, i)
        clean = ((there.astype(cupy.float32) - dark) / 4096).astype(cupy.float16)
        filtered = bank @ (clean @ bank)
        cupy.add(total, cupy.square(filtered.astype(cupy.float32)).mean(axis=0), out=total)

    loop.run(step, wait)


if __name__ == "__main__":
    main()
