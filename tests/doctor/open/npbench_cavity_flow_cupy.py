# SPDX-License-Identifier: Apache-2.0
"""A flow in a cavity with a moving lid, of a collection of NumPy benchmarks, in CuPy: 101 x 101 points in float64.

An engineer sees an equation for the pressure relaxed fifty times a step, each time by a copy, a dozen operations on ten
thousand numbers, and four on edges: a thousand kernels a step that run for two microseconds and take CuPy several times
that to launch. The repair writes the relaxation as one kernel, and so the two equations for the velocity. In both
variants the function is called as the benchmark calls it, with the sizes of its paper, and again once it is done.
"""
CAUSE = "launch"
LINE = "npbench/benchmarks/cavity_flow/cavity_flow_cupy.py:30"
LINES = ["npbench/benchmarks/cavity_flow/cavity_flow_cupy.py:51",
         "npbench/benchmarks/cavity_flow/cavity_flow_cupy.py:28"]
REPOSITORY = "spcl/npbench"
COMMIT = "f2d7f27d87ba4881991e62c18a607aa6ba52b260"
COMMAND = ["npbench/benchmarks/cavity_flow/cavity_flow_cupy.py"]
EDITS = [("npbench/benchmarks/cavity_flow/cavity_flow_cupy.py", 83, 82, """\
        step_done()


if __name__ == "__main__":
    from cavity_flow import initialize

    ny, nx, nt, nit, rho, nu = 101, 101, 700, 50, 1.0, 0.1
    while True:
        u, v, p, dx, dy, dt = initialize(ny, nx)
        u, v, p = (np.asarray(field) for field in (u, v, p))
        cavity_flow(nx, ny, nt, nit, u, v, dt, dx, dy, p, rho, nu)
""")]
REPAIR = [
    ("npbench/benchmarks/cavity_flow/cavity_flow_cupy.py", 11, 11, '''\

relax = np.ElementwiseKernel(
    "float64 right, float64 left, float64 below, float64 above, float64 b, float64 dx, float64 dy", "float64 p",
    """
    double x = dx * dx, y = dy * dy;
    p = ((right + left) * y + (below + above) * x) / (2 * (x + y)) - x * y / (2 * (x + y)) * b;
    """, "relax")

# One equation for either velocity w: how it is carried, pushed by the pressure over h, and slowed by friction.
carry = np.ElementwiseKernel(
    "float64 w, float64 left, float64 right, float64 above, float64 below, float64 un, float64 vn, float64 high,"
    "float64 low, float64 h, float64 dt, float64 dx, float64 dy, float64 rho, float64 nu", "float64 out",
    """
    out = w - un * dt / dx * (w - left) - vn * dt / dy * (w - above) - dt / (2 * rho * h) * (high - low)
        + nu * (dt / (dx * dx) * (right - 2 * w + left) + dt / (dy * dy) * (below - 2 * w + above));
    """, "carry")


'''),
    ("npbench/benchmarks/cavity_flow/cavity_flow_cupy.py", 30, 33, """\
        relax(pn[1:-1, 2:], pn[1:-1, 0:-2], pn[2:, 1:-1], pn[0:-2, 1:-1], b[1:-1, 1:-1], dx, dy, p[1:-1, 1:-1])
"""),
    ("npbench/benchmarks/cavity_flow/cavity_flow_cupy.py", 53, 73, """\
        carry(un[1:-1, 1:-1], un[1:-1, 0:-2], un[1:-1, 2:], un[0:-2, 1:-1], un[2:, 1:-1], un[1:-1, 1:-1],
              vn[1:-1, 1:-1], p[1:-1, 2:], p[1:-1, 0:-2], dx, dt, dx, dy, rho, nu, u[1:-1, 1:-1])
        carry(vn[1:-1, 1:-1], vn[1:-1, 0:-2], vn[1:-1, 2:], vn[0:-2, 1:-1], vn[2:, 1:-1], un[1:-1, 1:-1],
              vn[1:-1, 1:-1], p[2:, 1:-1], p[0:-2, 1:-1], dy, dt, dx, dy, rho, nu, v[1:-1, 1:-1])
"""),
]
STEPS = 600
WARM_UP = 20
BEFORE = 5
