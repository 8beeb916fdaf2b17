# SPDX-License-Identifier: Apache-2.0
"""CuPy's example of conjugate gradients for 2000 equations in float64; a step is ten iterations.

An engineer sees some eighteen kernels an iteration, most of them for two thousand numbers or for one, which the GPU does
in a few microseconds each and Python launches in ten; even the product of the matrix, computed twice, comes out of the
cache. The repair forms that product once, keeps the squared norm for the next iteration and puts the updates into two
kernels of its own. The other repair looks only every fiftieth iteration whether the solution is there, for which the
loop otherwise waits. In both variants the matrix is multiplied as float64, which saves half a minute, nothing is solved
on the CPU, and the tolerance is zero, so that the solver goes on.
"""
CAUSE = "launch"
LINE = "examples/cg/cg.py:30"
REPOSITORY = "cupy/cupy"
COMMIT = "6b6d9563c4f7410cd1866a11b2f71a60dd45a68c"
FOLDER = "examples/cg"
COMMAND = ["cg.py", "--tol", "0", "--max-iter", "1000000"]
EDITS = [
    ("examples/cg/cg.py", 38, 37, "        step_done()"),
    ("examples/cg/cg.py", 56, 57, """\
        A = np.random.randint(-50, 50, size=(N, N)).astype(np.float64)
        A = A @ A.T
"""),
    ("examples/cg/cg.py", 61, 64, ""),
]
REPAIR = [
    ("examples/cg/cg.py", 22, 21, """\
advance = cupy.ElementwiseKernel(
    'float64 rr, float64 pAp, float64 p, float64 Ap', 'float64 x, float64 r',
    'double a = rr / pAp; x += a * p; r -= a * Ap;', 'cg_advance')
turn = cupy.ElementwiseKernel(
    'float64 rr1, float64 rr0, float64 r', 'float64 p', 'p = r + rr1 / rr0 * p;', 'cg_turn')


"""),
    ("examples/cg/cg.py", 27, 37, """\
    r = b - xp.dot(A, x)
    p = r.copy()
    rr0 = xp.inner(r, r)
    for i in range(max_iter):
        Ap = xp.dot(A, p)
        advance(rr0, xp.inner(p, Ap), p, Ap, x, r)
        rr1 = xp.inner(r, r)
        if float(rr1) < tol * tol:
            return x
        turn(rr1, rr0, r, p)
        rr0 = rr1
"""),
]
OTHER_REPAIRS = {"sync": [
    ("examples/cg/cg.py", 33, 33, """\
        norm = xp.linalg.norm(r1)
        if i % 50 == 49 and norm < tol:
"""),
]}
STEPS = 1500
EVERY = 10
