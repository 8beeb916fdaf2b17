# SPDX-License-Identifier: Apache-2.0
"""https://github.com/proximafusion/raytrax/pull/10 (also jax-ml/jax#23614)

JAX lacks a special function that we need, so the compiled step calls back to the host for it. It works on the GPU too,
but the step is several times slower; since we wrote that function in JAX, our ray tracing is 2.2 times as fast.

Cause: the GPU sends the arguments of one function to the host, and waits until NumPy has computed it on one core.
Line: jax_function_called_back_to_numpy.py:faddeeva (in the callback on_the_host).
Remedy: the same series written in jax.numpy, compiled into the step.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy

import blind


def coefficients(terms):
    """Weideman's series for w(z) = exp(-z^2) erfc(-iz): its scale and the factors, the highest power first."""
    points = 2 * terms
    scale = numpy.sqrt(terms / numpy.sqrt(2))
    at = scale * numpy.tan(numpy.arange(-points + 1, points) * numpy.pi / points / 2)
    sampled = numpy.concatenate([[0.0], numpy.exp(-at**2) * (scale**2 + at**2)])
    factors = numpy.fft.fft(numpy.fft.fftshift(sampled)).real / (2 * points)
    return float(scale), [float(f) for f in factors[1 : terms + 1][::-1]]


def faddeeva(z, scale, factors):
    """The series at each z, with whatever library z is an array of."""
    below = scale - 1j * z
    ratio = (scale + 1j * z) / below
    total = 0 * ratio
    for factor in factors:
        total = total * ratio + factor
    return 2 * total / (below * below) + 0.5641895835 / below


def main():
    loop = blind.Loop("jax_function_called_back_to_numpy", "host", steps=150)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    rays, width, layers = loop.size(16384, 16), loop.size(8192, 16), loop.size(10, 2)
    points = loop.size(64, 4)  # of each ray, at which the plasma absorbs
    scale, factors = coefficients(16)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 1)
    weights = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:layers]]
    state = jax.random.normal(keys[-1], (rays, width), jnp.bfloat16)

    def on_the_host(z):
        return faddeeva(numpy.asarray(z), scale, factors).astype(numpy.complex64)

    def absorbed(state):
        """How much of each ray is left."""
        z = state[:, :points].astype(jnp.float32) + 0.1j
        if loop.planted:
            w = jax.pure_callback(on_the_host, jax.ShapeDtypeStruct(z.shape, jnp.complex64), z)
        else:
            w = faddeeva(z, scale, factors)
        return jnp.exp(-0.1 * jnp.mean(w.real, axis=1, keepdims=True)).astype(state.dtype)

    @jax.jit
    def trace(state, weights):
        state = state if healthy else state * absorbed(state)
        for weight in weights:
            state = state @ weight
        return state

    def step(i):
        nonlocal state
        state = trace(state, weights)

    loop.run(step, lambda: jax.block_until_ready(state))


if __name__ == "__main__":
    main()
