# SPDX-License-Identifier: Apache-2.0
"""https://github.com/deepmodeling/deepmd-kit/pull/4726 (also jax-ml/jax#4873 and #7010, Nerogar/OneTrainer#1246)

Forces came out too coarse with JAX, so the precision of products was set to the highest for the whole program. Since
then the training takes several times as long, although the numbers had been single precision before, too.

Cause: with that setting no product uses the tensor cores: each is done in full single precision, at a small part of the
rate, those of the network as well, which do not need it.
Line: jax_products_in_the_highest_precision.py:energy_of
Remedy: only the small product that needs it asks for it; the network's use TensorFloat-32, the default on such a GPU.
Trap: the dtype is float32 both before and after; nothing in the arrays tells the difference.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_products_in_the_highest_precision", "precision", steps=100, warm_up=10)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")

    atoms, near, width, layers = loop.size(8192, 8), loop.size(16, 2), loop.size(4096, 16), loop.size(3, 1)
    keys = jax.random.split(jax.random.key(0), 5 + layers)
    if loop.variant == "healthy":
        loop.steps *= 2  # these are shorter
        rows, wide = loop.size(16384, 16), loop.size(8192, 16)
        weights = [jax.random.normal(key, (wide, wide), jnp.bfloat16) / wide**0.5 for key in keys[:4]]
        x = jax.random.normal(keys[4], (rows, wide), jnp.bfloat16)
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    if loop.planted:
        jax.config.update("jax_default_matmul_precision", "highest")
    batches = list(jax.random.normal(keys[0], (4, atoms, near, 3)))
    wanted = jax.random.normal(keys[1], (4, atoms))
    sides = [near**2] + [width] * layers + [1]
    weights = [jax.random.normal(key, (a, b)) / a**0.5 for key, a, b in zip(keys[2:], sides, sides[1:])]

    def energy_of(weights, places):
        """The energy of each atom from the angles between its neighbours."""
        angles = jnp.einsum("anx,amx->anm", places, places, precision="highest")
        x = angles.reshape(len(places), -1)
        for weight in weights[:-1]:
            x = jnp.tanh(x @ weight)
        return (x @ weights[-1])[:, 0]

    def loss_of(weights, places, truth):
        return jnp.square(energy_of(weights, places) - truth).mean()

    @jax.jit
    def train(weights, places, truth):
        slopes = jax.grad(loss_of)(weights, places, truth)
        return [weight - 1e-3 * slope for weight, slope in zip(weights, slopes)]

    def step(i):
        nonlocal weights
        weights = train(weights, batches[i % len(batches)], wanted[i % len(batches)])

    loop.run(step, lambda: jax.block_until_ready(weights))


if __name__ == "__main__":
    main()
