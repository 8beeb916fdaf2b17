# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/13572 (the reason and the remedy in jax-ml/jax#390)

A loop adds up terms, each of them weighted with one element of an array. With the elements read from the array it takes
many times as long as with numbers in their place; reading them costs much more than the arithmetic. Is it because of
lazy execution?

Cause: outside of a compiled function, reading one element of an array on the GPU is an operation of its own: the host
works out the index and launches a kernel that copies four bytes. It takes longer than adding a term does.
Line: jax_elements_read_in_a_python_loop.py:composed
Remedy: the array is fetched once as a NumPy array, and the elements are read from that.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy

import blind


def composed(modes, weights):
    """The sum of all modes, each with its weight; some count more."""
    total = 0.0
    for i, mode in enumerate(modes):
        if i == 0:
            total = total + mode * weights[i]
        elif i < 8:
            total = total + mode * weights[i] * 0.5
        else:
            total = total + mode * weights[i] * 0.25
    return total


def main():
    loop = blind.Loop("jax_elements_read_in_a_python_loop", "host", steps=500)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")

    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
        rows, width = loop.size(16384, 16), loop.size(8192, 16)
        keys = jax.random.split(jax.random.PRNGKey(0), 5)
        weights = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:4]]
        x = jax.random.normal(keys[4], (rows, width), jnp.bfloat16)
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    count, side, layers = loop.size(96, 10), loop.size(1024, 8), loop.size(12, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), count + layers)
    modes = [jax.random.normal(key, (side, side)) / count for key in keys[:count]]
    matrices = [jax.random.normal(key, (4 * side, 4 * side), jnp.bfloat16) / (4 * side) ** 0.5 for key in keys[count:]]

    @jax.jit
    def weighed(field, matrices):
        """What a network makes of the field: the weights of the modes in the next one."""
        x = jnp.tile(field.astype(jnp.bfloat16), (2, 4))
        for matrix in matrices:
            x = jnp.tanh(x @ matrix)
        return 1 + 0.1 * jnp.mean(x.astype(jnp.float32), axis=0)[:count]

    field = modes[0]

    def step(i):
        nonlocal field
        weights = weighed(field, matrices)
        field = composed(modes, weights if loop.planted else numpy.asarray(weights))

    loop.run(step, lambda: jax.block_until_ready(field))


if __name__ == "__main__":
    main()
