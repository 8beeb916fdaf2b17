# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/issues/3277 (one kernel instead, with measurements: rapidsai/cucim#482)

We replaced NumPy by CuPy and counted where the time goes. Padding is slow: to repeat the values at the border, the
library's function takes several times as long as putting the pieces together by hand, above all for small images.

Cause: for each axis and each of its ends the function cuts out the edge and writes it to where it belongs, each time
with a small kernel of its own and a good deal of Python around it. The stencil itself is one kernel.
Line: cupy_fields_padded_edge_by_edge.py:padded (its call of the library's pad).
Remedy: one kernel of our own writes the padded field, taking each value from the nearest point inside.
"""
import blind


def padded(cupy, fields):
    return cupy.pad(fields, ((0, 0), (1, 1), (1, 1)), mode="edge")


def main():
    loop = blind.Loop("cupy_fields_padded_edge_by_edge", "launch", steps=1200)
    try:
        import cupy
    except ImportError:
        raise SystemExit(f"{loop.name}: needs CuPy (pip install cupy-cuda13x)")
    if not cupy.is_available():
        raise SystemExit(f"{loop.name}: no GPU; CuPy has no other device")
    random = cupy.random.RandomState(0)
    wait = cupy.cuda.Device().synchronize

    if loop.variant == "healthy":
        # The same number of values, mixed by large products.
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

    count, rows, columns, rounds = loop.size(8, 1), loop.size(256, 8), loop.size(256, 8), loop.size(60, 2)
    nearest = cupy.ElementwiseKernel(
        "raw T inside, int32 rows, int32 columns", "T wide", """
        const int across = columns + 2, down = rows + 2;
        const int column = min(max(int(i % across) - 1, 0), columns - 1);
        const int row = min(max(int(i / across % down) - 1, 0), rows - 1);
        wide = inside[(i / across / down * rows + row) * columns + column];
        """, "pad_with_nearest")
    smooth = cupy.ElementwiseKernel(
        "raw T wide, int32 rows, int32 columns", "T next", """
        const int across = columns + 2;
        const int at = (int(i / columns / rows) * (rows + 2) + int(i / columns % rows) + 1) * across
                       + int(i % columns) + 1;
        const T centre = wide[at];
        const T around = wide[at - 1] + wide[at + 1] + wide[at - across] + wide[at + across] - 4 * centre;
        next = centre + (T)0.15 * around / (1 + around * around);
        """, "smooth_within_edges")
    fields = random.standard_normal((count, rows, columns), dtype=cupy.float32)

    def padded_at_once(fields):
        return nearest(fields, rows, columns, cupy.empty((count, rows + 2, columns + 2), dtype=cupy.float32))

    def step(i):
        nonlocal fields
        for _ in range(rounds):
            wide = padded(cupy, fields) if loop.planted else padded_at_once(fields)
            fields = smooth(wide, rows, columns, cupy.empty_like(fields))

    loop.run(step, wait)


if __name__ == "__main__":
    main()
