# SPDX-License-Identifier: Apache-2.0
"""https://github.com/NVIDIA/cub/issues/663 (also cupy/cupy#8092, struphy-hub/struphy#347)

Distances of millions of particles: the squares of three coordinates are summed along the last axis. Writing the sum of
the columns out by hand is tens of times faster, for the same numbers.

Cause: the sum along an axis takes a block of many threads for each row, to add up three numbers; millions of blocks
come and go, and almost all of their threads do nothing.
Line: cupy_three_coordinates_summed_along_rows.py:lengths
Remedy: the three columns are added to each other.
Trap: it is one call, the library's own fast sum, and the GPU is busy all the time.
"""
import blind


def lengths(xp, vectors):
    return xp.sqrt((vectors * vectors).sum(axis=1))


def lengths_by_column(xp, vectors):
    x, y, z = vectors[:, 0], vectors[:, 1], vectors[:, 2]
    return xp.sqrt(x * x + y * y + z * z)


def main():
    loop = blind.Loop("cupy_three_coordinates_summed_along_rows", "memory")
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

    particles, modes = loop.size(4_000_000, 100), loop.size(8192, 16)
    places, speeds = (random.standard_normal((particles, 3)).astype(xp.float32) for _ in range(2))
    field, solver = (random.standard_normal((modes, modes)).astype(xp.float16) / modes**0.5 for _ in range(2))
    measure = lengths if loop.planted else lengths_by_column
    state = field

    def step(i):
        """The field is solved anew; particles move by their speeds, less so where they are far out or fast."""
        nonlocal state
        state = (field @ solver) @ (solver @ field)
        far, fast = measure(xp, places), measure(xp, speeds)
        slow_down = xp.minimum(1, 2 / (1 + far * fast))
        places[...] += xp.float32(1e-3) * slow_down[:, None] * speeds

    loop.run(step, wait)


if __name__ == "__main__":
    main()
