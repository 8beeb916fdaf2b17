# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/pull/7888 (why it's so slow, in JAX, in jax-ml/jax#26779)

Entries of a sparse matrix are set many times over. With the test whether one of them is new written in another way the
whole is much faster; it is only one line, and asks the GPU for one answer either way. What can be slow about it?

Cause: `-1 in array` is the host's own search: it takes one element after the other, each by a slice, a comparison that
is launched for it, and a copy of the answer that the host waits for, until it has found one or there are no more.
Line: cupy_value_looked_for_with_in.py:some_are_missing
Remedy: all elements are compared in one kernel, and one answer is read.
Trap: it reads like one question, and one answer has to be waited for in any case.
"""
import blind


def some_are_missing(offsets):
    return -1 in offsets


def some_are_missing_at_once(offsets):
    return bool((offsets == -1).any())


def main():
    loop = blind.Loop("cupy_value_looked_for_with_in", "sync", steps=300)
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

    # Rows of a matrix with a few entries each, sorted by column; the links of a circuit change some of them each step.
    rows, entries, links, rounds = loop.size(200_000, 50), loop.size(32, 4), loop.size(192, 6), loop.size(2, 1)
    columns = xp.sort(random.randint(0, rows, size=(rows, entries)), axis=1)
    values = random.standard_normal((rows, entries)).astype(xp.float32)
    columns[:, 0], state = xp.arange(rows), random.standard_normal((rows, 64)).astype(xp.float32)
    changed = [(random.randint(0, rows, size=links), random.randint(0, entries, size=links)) for _ in range(8)]
    missing = some_are_missing if loop.planted else some_are_missing_at_once

    def offsets_of(row, column):
        """Where in its row each entry stands, or -1 where the row has no such entry."""
        same = columns[row] == column[:, None]
        return xp.where(same.any(axis=1), same.argmax(axis=1), -1)

    def write(row, column, value):
        offsets = offsets_of(row, column)
        if missing(offsets):
            raise KeyError("an entry that the matrix does not have")
        values[row, offsets] = value

    def product(state):
        """The matrix times the state, an entry of each row after the other."""
        total = values[:, :1] * state
        for entry in range(1, entries):
            total += values[:, entry:entry + 1] * state[columns[:, entry]]
        return total

    def step(i):
        nonlocal state
        for n in range(rounds):
            row, entry = changed[(i * rounds + n) % len(changed)]
            write(row, columns[row, entry], xp.float32(0.1) * state[row, n])
        state = product(state)
        state /= xp.abs(state).max(axis=0) + xp.float32(1e-6)

    loop.run(step, wait)


if __name__ == "__main__":
    main()
