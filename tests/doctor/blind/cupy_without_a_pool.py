# SPDX-License-Identifier: Apache-2.0
"""github.com/cupy/cupy/pull/2898.

The timeline of our array program shows a stall wherever a temporary array dies; the kernels themselves are short.

Cause: without a memory pool each temporary is a cudaMalloc and a cudaFree, and the free waits for the device.
Line: cupy_without_a_pool.py:relax, at each array that it makes and drops.
Remedy: the default memory pool (the program had switched it off to save memory).
"""
import blind


def relax(cupy, state, operator, rounds):
    """Some products, each followed by element-wise work with temporaries of the same size."""
    for _ in range(rounds):
        flow = operator @ state
        limited = cupy.tanh(flow)
        state = 0.5 * (state + limited) - 0.01 * state * limited
    return state


def main():
    loop = blind.Loop("cupy_without_a_pool", "allocation", steps=500)
    try:
        import cupy
    except ImportError:
        raise SystemExit(f"{loop.name}: needs CuPy (pip install cupy-cuda13x)")
    if not cupy.is_available():
        raise SystemExit(f"{loop.name}: no GPU; CuPy has no other device")
    if loop.planted:
        cupy.cuda.set_allocator(None)
    # Healthy keeps the pool and has fewer, wider rounds: the products are nearly all of the time.
    healthy = loop.variant == "healthy"
    side, columns = loop.size(4096, 64), loop.size(16384 if healthy else 4096, 64)
    rounds = loop.size(1 if healthy else 4, 1)
    random = cupy.random.RandomState(0)
    operator = random.standard_normal((side, side), dtype=cupy.float32) / side**0.5
    start = random.standard_normal((side, columns), dtype=cupy.float32)
    state = start

    def step(i):
        nonlocal state
        state = relax(cupy, start if i % 50 == 0 else state, operator, rounds)

    loop.run(step, lambda: cupy.cuda.Device().synchronize())


if __name__ == "__main__":
    main()
