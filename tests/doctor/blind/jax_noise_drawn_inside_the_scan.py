# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/7024 (of drawing one at a time also jax-ml/jax#968)

My simulation is compiled as a whole, nothing of it runs in Python, and still it is much slower on the GPU than on the
processor. When I draw all random numbers before the loop, it takes 0.13 s instead of 0.69 s.

Cause: each round of the compiled loop makes a key, draws few numbers and changes a small array: several kernels of
about two microseconds each, a thousand times one after another.
Line: jax_noise_drawn_inside_the_scan.py:step (its call of the compiled function; the loop itself is in walk).
Remedy: all numbers are drawn by one large kernel before the loop, and a round of the loop takes twenty of its steps.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_noise_drawn_inside_the_scan", "launch", steps=150)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    rounds, walkers, axes, at_once = loop.size(1000, 10), loop.size(4096, 8), 16, loop.size(20, 5)
    rows, width, layers = loop.size(16384, 16), loop.size(8192, 16), loop.size(8 if healthy else 2, 1)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 2)
    weights = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:layers]]
    state = jax.random.normal(keys[layers], (rows, width), jnp.bfloat16)
    places = jnp.zeros((walkers, axes))

    def noise(key, at):
        return jax.random.normal(jax.random.fold_in(key, at), (walkers, axes))

    def moved(places, push):
        """One step of the walk: a force that bends back, and a push."""
        return places + 0.01 * (jnp.tanh(places) - places) + 0.1 * push

    def walk(places, key):
        if loop.planted:
            def one(places, at):
                return moved(places, noise(key, at)), None

            return jax.lax.scan(one, places, jnp.arange(rounds))[0]
        pushes = jax.vmap(lambda at: noise(key, at))(jnp.arange(rounds))
        return jax.lax.scan(lambda places, push: (moved(places, push), None), places, pushes, unroll=at_once)[0]

    @jax.jit
    def advance(places, state, weights, key):
        if not healthy:
            places = walk(places, key)
        for weight in weights:  # the network that is trained with the walks
            state = state @ weight
        return places, state

    def step(i):
        nonlocal places, state
        places, state = advance(places, state, weights, keys[-1])

    loop.run(step, lambda: jax.block_until_ready((places, state)))


if __name__ == "__main__":
    main()
