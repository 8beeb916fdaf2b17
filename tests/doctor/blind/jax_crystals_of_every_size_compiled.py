# SPDX-License-Identifier: Apache-2.0
"""https://github.com/atomicarchitects/nequix/pull/22 (also jax-ml/jax#15412, ACEsuit/mace#1590)

Crystals from a database are relaxed one after the other with a learnt potential. Within one crystal the steps are fast,
but the first step of each takes far longer than all the rest of it, even after dozens of crystals.

Cause: a crystal has a number of atoms of its own, and for each shape of its arrays the jitted forces are traced and
compiled anew; the GPU waits.
Line: jax_crystals_of_every_size_compiled.py:step (its call of forces_of)
Remedy: atoms that bind to nothing are added up to a common size, so that what is compiled for one serves all.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy as np

import blind

BONDS, STEPS = 32, 60  # of an atom; of the relaxation of a crystal


def crystal(number, atoms, padded):
    """Places of atoms, the neighbours of each, and which bonds count."""
    rng = np.random.default_rng(number)
    places = np.zeros((padded, 3), np.float32)
    places[:atoms] = rng.uniform(0, atoms ** (1 / 3), (atoms, 3))
    neighbours, counts = np.zeros((padded, BONDS), np.int32), np.zeros((padded, BONDS), np.float32)
    neighbours[:atoms], counts[:atoms] = rng.integers(0, atoms, (atoms, BONDS)), 1
    return places, neighbours, counts


def main():
    loop = blind.Loop("jax_crystals_of_every_size_compiled", "recompile", steps=4 * STEPS, warm_up=STEPS)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")

    if loop.variant == "healthy":
        loop.steps *= 2  # these are shorter
        rows, width = loop.size(16384, 16), loop.size(8192, 16)
        keys = jax.random.split(jax.random.PRNGKey(0), 5)
        weights = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:4]]
        x = jax.random.normal(keys[4], (rows, width), jnp.bfloat16)
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    largest, width, layers = loop.size(8192, 32), loop.size(512, 16), loop.size(6, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), layers)
    weights = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys]
    centres = jnp.linspace(0, 8, width)

    def energy(places, neighbours, counts):
        """The sum over bonds of what a network says of their lengths."""
        apart = places[neighbours] - places[:, None]
        distances = jnp.sqrt(jnp.square(apart).sum(axis=-1) + 1e-3).reshape(-1, 1)
        x = jnp.exp(-jnp.square(distances - centres)).astype(jnp.bfloat16)
        for weight in weights:
            x = jax.nn.silu(x @ weight)
        return (x.astype(jnp.float32).mean(axis=1) * counts.reshape(-1)).sum()

    forces_of = jax.jit(jax.grad(energy))
    # The sizes of crystals that have been relaxed are not seen again.
    sizes = np.random.default_rng(0).permutation(np.arange(largest * 7 // 8, largest)).tolist()
    places = neighbours = counts = None

    def step(i):
        nonlocal places, neighbours, counts
        if i % (1 if loop.small else STEPS) == 0:
            atoms = sizes[i // STEPS]
            places, neighbours, counts = map(jnp.asarray, crystal(i, atoms, atoms if loop.planted else largest))
        places = places - 1e-3 * forces_of(places, neighbours, counts)

    loop.run(step, lambda: jax.block_until_ready(places))


if __name__ == "__main__":
    main()
