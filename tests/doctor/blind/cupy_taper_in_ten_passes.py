# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/pull/3312

A window of ten million samples takes 22 ms although it is only a formula; as one kernel of its own it takes 1.3 ms.

Cause: each operator of the formula is a kernel of its own, which reads its arguments from memory and writes a
temporary array of 0.3 GB: ten passes over memory for one result.
Line: cupy_taper_in_ten_passes.py:tapered
Remedy: the formula as one ElementwiseKernel: it reads the field and the phases once and writes the result once.
"""
import math

import blind

FORMULA = """
    y = x * (0.42f - 0.5f * cosf(6.2831853f * phase) + 0.08f * cosf(12.5663706f * phase));
"""


def tapered(cupy, field, phase):
    """The field under a Blackman window."""
    weight = 0.42 - 0.5 * cupy.cos(2 * math.pi * phase) + 0.08 * cupy.cos(4 * math.pi * phase)
    return field * weight


def main():
    loop = blind.Loop("cupy_taper_in_ten_passes", "memory", steps=450)
    try:
        import cupy
    except ImportError:
        raise SystemExit(f"{loop.name}: needs CuPy (pip install cupy-cuda13x)")
    if not cupy.is_available():
        raise SystemExit(f"{loop.name}: no GPU; CuPy has no other device")
    random = cupy.random.RandomState(0)
    wait = cupy.cuda.Device().synchronize
    rows, columns = loop.size(16384, 64), loop.size(8192, 64)
    bank = (random.standard_normal((columns, columns), dtype=cupy.float32) / columns**0.5).astype(cupy.float16)
    start = state = random.standard_normal((rows, columns), dtype=cupy.float32).astype(cupy.float16)

    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)

        def step(i):
            nonlocal state
            state = start if i % 10 == 0 else state  # rounding would add up otherwise
            for _ in range(loop.size(5, 1)):
                state = state @ bank

        return loop.run(step, wait)

    size = loop.size(8192, 32)
    fields = [random.standard_normal((size, size), dtype=cupy.float32) for _ in range(loop.size(6, 2))]
    phases = [random.random_sample((size, size)).astype(cupy.float32) for _ in range(2)]
    fused = cupy.ElementwiseKernel("float32 x, float32 phase", "float32 y", FORMULA, "tapered")

    def step(i):
        nonlocal state
        for n, field in enumerate(fields):
            phase = phases[n % 2]
            result = tapered(cupy, field, phase) if loop.planted else fused(field, phase)
        state = start @ bank  # the filter that goes with each set of fields
        return result

    loop.run(step, wait)


if __name__ == "__main__":
    main()
