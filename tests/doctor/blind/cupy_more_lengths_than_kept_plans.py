# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/issues/8075 (the cache is of cupy/cupy#3730; the cost of a plan: cupy/cupy#3588)

Our code transforms arrays of many different sizes, over and over. With the library's functions the run time is
dominated by what happens before each transform; with plans that we keep ourselves it's several times faster.

Cause: the library keeps the plans of the last 16 kinds of transform. There are 24 here, used in turn, so that whenever
one is needed it has just been thrown away: every transform makes its plan anew on the host, and the GPU waits for it.
Line: cupy_more_lengths_than_kept_plans.py:matched (its calls of rfft and irfft).
Remedy: the cache is made large enough for all of them, by one line at the start.
"""
import blind


def matched(cupy, signals, shape, length):
    """The largest value of each signal under the filter whose spectrum is `shape`."""
    spectra = cupy.fft.rfft(signals[:, :length], axis=1)
    return cupy.fft.irfft(spectra * shape, n=length, axis=1).max(axis=1)


def main():
    loop = blind.Loop("cupy_more_lengths_than_kept_plans", "host", steps=500)
    try:
        import cupy
        from cupyx.scipy.fft import next_fast_len
    except ImportError:
        raise SystemExit(f"{loop.name}: needs CuPy (pip install cupy-cuda13x)")
    if not cupy.is_available():
        raise SystemExit(f"{loop.name}: no GPU; CuPy has no other device")
    random = cupy.random.RandomState(0)
    wait = cupy.cuda.Device().synchronize

    if loop.variant == "healthy":
        # A bank of filters as one large product: no transform, and no plan.
        loop.steps = min(loop.steps, 300)
        rows, columns = loop.size(16384, 64), loop.size(8192, 64)
        bank = (random.standard_normal((columns, columns), dtype=cupy.float32) / columns**0.5).astype(cupy.float16)
        start = state = random.standard_normal((rows, columns), dtype=cupy.float32).astype(cupy.float16)

        def step(i):
            nonlocal state
            state = start if i % 10 == 0 else state  # rounding would add up otherwise
            for _ in range(loop.size(5, 1)):
                state = state @ bank

        return loop.run(step, wait)

    lengths = []
    for n in range(12):  # of receivers with different rates
        lengths.append(next_fast_len(loop.size(9000, 60) + loop.size(610, 30) * n))
    if len(set(lengths)) < len(lengths):
        raise SystemExit(f"{loop.name}: the lengths are meant to differ, and are {lengths}")
    if not loop.planted:
        cupy.fft.config.get_plan_cache().set_size(64)
    signals = [random.standard_normal((loop.size(2048, 4), length), dtype=cupy.float32) for length in lengths]
    shapes = [cupy.fft.rfft(random.standard_normal(length, dtype=cupy.float32)) for length in lengths]

    def step(i):
        return [matched(cupy, *each) for each in zip(signals, shapes, lengths)]

    loop.run(step, wait)


if __name__ == "__main__":
    main()
