# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/issues/1072

An optical model on arrays of 128 x 128 takes 10 ms on the processor and 7 ms on the GPU; on 512 x 512, sixteen times
the work, the GPU takes no longer. Can the kernels be dispatched more quickly, or be fused?

Cause: each element-wise operation on a small array is a kernel of its own, and launching it takes the host several
times as long as the kernel runs.
Line: cupy_ufuncs_on_small_fields.py:phase_by_ufuncs
Remedy: the element-wise operations of a term in one kernel of their own.
"""
import blind

FUSED = """
    const double angle = order * azimuth;
    const double radial = radius * radius * (order * radius - 1.0);
    out = before + weight * radial * cos(angle) * exp(-0.5 * radius * radius);
"""


def phase_by_ufuncs(cupy, radius, azimuth, weights):
    phase = cupy.zeros_like(radius)
    for order, weight in enumerate(weights, 1):
        radial = radius * radius * (order * radius - 1.0)
        phase = phase + weight * radial * cupy.cos(order * azimuth) * cupy.exp(-0.5 * radius * radius)
    return phase


def phase_by_kernel(cupy, kernel, radius, azimuth, weights):
    phase = cupy.zeros_like(radius)
    for order, weight in enumerate(weights, 1):
        phase = kernel(phase, radius, azimuth, float(order), weight)
    return phase


def main():
    loop = blind.Loop("cupy_ufuncs_on_small_fields", "launch", steps=400)
    try:
        import cupy
    except ImportError:
        raise SystemExit(f"{loop.name}: needs CuPy (pip install cupy-cuda13x)")
    if not cupy.is_available():
        raise SystemExit(f"{loop.name}: no GPU; CuPy has no other device")
    healthy = loop.variant == "healthy"
    side, terms = loop.size(128, 16), loop.size(4 if healthy else 100, 2)
    pixels, modes, columns = loop.size(8192, 64), loop.size(8192, 64), loop.size(32768 if healthy else 8192, 64)
    along = cupy.linspace(-1, 1, side)
    across, down = cupy.meshgrid(along, along)
    radius, azimuth = cupy.sqrt(across**2 + down**2), cupy.arctan2(down, across)
    weights = [0.1 / order for order in range(1, terms + 1)]
    kernel = cupy.ElementwiseKernel(
        "float64 before, float64 radius, float64 azimuth, float64 order, float64 weight", "float64 out", FUSED, "term")
    random = cupy.random.RandomState(0)
    operator = (random.standard_normal((pixels, modes), dtype=cupy.float32) / modes**0.5).astype(cupy.float16)
    start = random.standard_normal((modes, columns), dtype=cupy.float32).astype(cupy.float16)
    state, phase = start, None

    def step(i):
        nonlocal state, phase
        if loop.planted:
            phase = phase_by_ufuncs(cupy, radius, azimuth, weights)
        else:
            phase = phase_by_kernel(cupy, kernel, radius, azimuth, weights)
        state = operator @ (start if i % 50 == 0 else state)  # the propagation of many modes at once

    loop.run(step, lambda: cupy.cuda.Device().synchronize())


if __name__ == "__main__":
    main()
