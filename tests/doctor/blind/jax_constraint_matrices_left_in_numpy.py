# SPDX-License-Identifier: Apache-2.0
"""https://github.com/PlasmaControl/DESC/pull/1051

Between the iterations of the optimizer there are large copies from the host to the device, although all the numbers
that change are on the device already.

Cause: the two matrices that lead from the free parameters to all parameters and back are NumPy arrays, so they are
copied to the device, from pageable memory, each time that they are multiplied with something there.
Line: jax_constraint_matrices_left_in_numpy.py:recover and project
Remedy: the matrices become arrays of the device once.
"""
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy as np

import blind


class LinearConstraints:
    """All parameters as a linear function of the free ones. The matrices are what was computed once, on the host."""

    def __init__(self, free, every, seed):
        rng = np.random.default_rng(seed)
        self.basis = rng.standard_normal((free, every), dtype=np.float32) / np.float32(free) ** 0.5
        self.inverse = np.ascontiguousarray(self.basis.T) * np.float32(free / every)
        self.particular = rng.standard_normal(every, dtype=np.float32)

    def put(self, convert):
        self.basis, self.inverse, self.particular = (convert(x) for x in (self.basis, self.inverse, self.particular))

    def recover(self, jnp, free):
        return jnp.dot(free, self.basis) + self.particular

    def project(self, jnp, slope):
        return jnp.dot(slope, self.inverse)


def main():
    loop = blind.Loop("jax_constraint_matrices_left_in_numpy", "copy", steps=160)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    free, every = loop.size(2048, 8), loop.size(8192, 16)
    equilibria, terms = loop.size(8192 if healthy else 2048, 4), loop.size(8 if healthy else 6, 2)
    constraints, resident = LinearConstraints(free, every, 0), LinearConstraints(free, every, 0)
    resident.put(jnp.asarray)
    if not loop.planted:
        constraints = resident
    keys = jax.random.split(jax.random.PRNGKey(1), terms + 1)
    operators = [jax.random.normal(key, (every, every), jnp.bfloat16) / every**0.5 for key in keys[:terms]]
    y = jax.random.normal(keys[-1], (equilibria, free), jnp.float32)

    def residual(x, operators):
        force = x.astype(jnp.bfloat16)
        for operator in operators:
            force = jnp.tanh(force @ operator)
        return 0.5 * jnp.mean(jnp.square(force.astype(jnp.float32)))

    objective = jax.jit(jax.value_and_grad(residual))

    def iterate(constraints, y):
        """A step of the optimizer, which is accepted where the residual is a number."""
        value, slope = objective(constraints.recover(jnp, y), operators)
        change = constraints.project(jnp, slope)
        return (y - 1e2 * change, value) if np.isfinite(float(value)) else (y, value)

    def timed(constraints):
        begin = time.perf_counter()
        for _ in range(5):
            jax.block_until_ready(iterate(constraints, y))
        return 1e3 * (time.perf_counter() - begin) / 5

    jax.block_until_ready(iterate(resident, y))
    resident_ms = timed(resident) if loop.planted else 0.0
    latest = None

    def step(i):
        nonlocal y, latest
        begin = time.perf_counter()
        y, latest = iterate(constraints, y)
        if loop.planted:  # what the iteration takes more than with matrices of the device
            jax.block_until_ready(y)
            loop.planted_ms.append(max(0.0, 1e3 * (time.perf_counter() - begin) - resident_ms))

    loop.run(step, lambda: jax.block_until_ready(y))


if __name__ == "__main__":
    main()
