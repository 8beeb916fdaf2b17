# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cai4cai/torchsparsegradutils/issues/101 (also cornellius-gp/gpytorch#1551, cupy/cupy#2808)

The conjugate gradients on the GPU have to be told on the host in each iteration whether the recurrence has broken down
and whether the residual is small enough; a check after every fifty iterations would do.

Cause: the scalar products of each iteration become Python numbers for two comparisons; the host waits for each, and
the small operations after it are launched while the GPU has nothing to do.
Line: cupy_solver_asks_in_every_iteration.py:solve
Remedy: the products stay on the GPU, and the residual is looked at once, when all iterations have been launched.
"""
import blind


def solve(xp, a, b, iterations, tolerance, asks):
    """Conjugate gradients from zero: the solution, and the square of the residual."""
    x, r = xp.zeros_like(b), b.copy()
    p, square = r.copy(), r @ r
    for _ in range(iterations):
        q = a @ p
        curvature = p @ q
        if asks and float(curvature) <= 0:
            raise ArithmeticError("the matrix is not positive definite")
        step = square / curvature
        x += step * p
        r -= step * q
        before, square = square, r @ r
        if asks and float(square) <= tolerance:
            break
        p *= square / before
        p += r
    return x, square


def main():
    loop = blind.Loop("cupy_solver_asks_in_every_iteration", "sync", steps=450)
    try:
        import cupy as xp

        on_gpu = xp.is_available()
    except ImportError:
        on_gpu = False
    if not on_gpu:
        if not loop.small:
            raise SystemExit(f"{loop.name}: needs CuPy and a GPU (pip install cupy-cuda13x)")
        import numpy as xp  # enough to see that the program runs
    healthy = loop.variant == "healthy"
    rows, features, iterations = loop.size(16384, 64), loop.size(64, 8), loop.size(40, 3)
    random = xp.random.RandomState(0)
    wait = xp.cuda.Device().synchronize if on_gpu else lambda: None

    if healthy:  # large products only
        side = loop.size(12288, 64)
        left, right = (random.standard_normal((side, side)).astype(xp.float16) for _ in range(2))
        return loop.run(lambda i: (left @ right, right @ left), wait)

    # The covariance of a Gaussian process, and some noise; single precision.
    points = random.standard_normal((rows, features)).astype(xp.float32)
    squares = (points * points).sum(axis=1)
    a = xp.exp((points @ points.T - squares[:, None] / 2 - squares[None, :] / 2) / features)
    a[xp.arange(rows), xp.arange(rows)] += xp.float32(0.001)
    sides = [random.standard_normal(rows).astype(xp.float32) for _ in range(4)]
    due, spans, seen = 0.0, [], []

    def queued(i):
        """Milliseconds from the first to the last kernel, launched ahead while the GPU solves for another side."""
        begin, end = xp.cuda.Event(), xp.cuda.Event()
        solve(xp, a, sides[i % 4 - 1], iterations, 0.0, False)
        begin.record()
        solve(xp, a, sides[i % 4], iterations, 0.0, False)
        end.record()
        end.synchronize()
        return xp.cuda.get_elapsed_time(begin, end)

    blind.take_gpu()
    if on_gpu and loop.planted:
        due = sorted(queued(i) for i in range(7))[3]

    def collect():
        while spans and spans[0][1].done:
            begin, end, at = spans.pop(0)
            if at >= loop.warm_up:
                loop.planted_ms.append(max(0.0, xp.cuda.get_elapsed_time(begin, end) - due))

    def step(i):
        if on_gpu and loop.planted:
            spans.append((xp.cuda.Event(), xp.cuda.Event(), i))
            spans[-1][0].record()
        seen.append(solve(xp, a, sides[i % 4], iterations, 0.0, loop.planted)[1])
        if on_gpu and loop.planted:
            spans[-1][1].record()
            collect()
        if i % 50 == 49:
            assert float(seen[-1]) >= 0
            seen.clear()

    loop.at_end.append(collect)
    loop.run(step, wait)


if __name__ == "__main__":
    main()
