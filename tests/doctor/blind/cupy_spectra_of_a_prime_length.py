# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/pull/3560 (with cupy/cupy#3526 and #3571; of other libraries numpy/numpy#8639)

Convolving by FFT takes 1.6 ms for signals of one length and 7.7 ms for those of another. Padded to a length of small
factors, all of them take 1.5 ms.

Cause: signal and filter together are 65521 samples long, a prime. For such a length the library takes a detour by
transforms of at least twice that length, and over memory several times more often.
Line: cupy_spectra_of_a_prime_length.py:peaks (its calls of rfft and irfft).
Remedy: 15 zeros more. 65536 is a power of two, and the result is the same.
"""
import blind


def peaks(cupy, signals, filters, size, length):
    """The largest value of each signal under each filter; `size` is that of the transforms, at least `length`."""
    spectra = cupy.fft.rfft(signals, n=size, axis=1)
    found = []
    for shape in filters:
        filtered = cupy.fft.irfft(spectra * cupy.fft.rfft(shape, n=size), n=size, axis=1)
        found.append(filtered[:, :length].max(axis=1))
    return found


def main():
    loop = blind.Loop("cupy_spectra_of_a_prime_length", "memory", steps=150)
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
        # A bank of filters as one large product: no transform, and nothing to pad.
        rows, columns = loop.size(16384, 64), loop.size(8192, 64)
        bank = (random.standard_normal((columns, columns), dtype=cupy.float32) / columns**0.5).astype(cupy.float16)
        state = random.standard_normal((rows, columns), dtype=cupy.float32).astype(cupy.float16)
        start = state

        def step(i):
            nonlocal state
            state = start if i % 10 == 0 else state  # rounding would add up otherwise
            for _ in range(loop.size(5, 1)):
                state = state @ bank

        return loop.run(step, wait)

    rows, samples, taps = loop.size(4096, 4), loop.size(60000, 100), loop.size(5522, 28)
    length = samples + taps - 1  # 65521, and 127 with --small: both are primes
    size = length if loop.planted else next_fast_len(length)
    signals = random.standard_normal((rows, samples), dtype=cupy.float32)
    filters = [random.standard_normal(taps, dtype=cupy.float32) for _ in range(loop.size(3, 1))]

    def step(i):
        peaks(cupy, signals, filters, size, length)

    loop.run(step, wait)


if __name__ == "__main__":
    main()
