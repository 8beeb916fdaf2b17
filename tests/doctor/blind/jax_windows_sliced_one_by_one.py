# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/12198 (also jax-ml/jax#2891, alpa-projects/alpa#151)

A forecaster is trained on pieces of long series which lie on the GPU already, so that nothing need be copied. Cutting
the pieces out by indexing is so slow that the GPU does next to nothing; NumPy does the same in no time.

Cause: each piece of a batch is cut out by an operation of its own outside of the compiled step, and given an axis by
another, before all are joined: hundreds of dispatches for a few hundred kilobytes.
Line: jax_windows_sliced_one_by_one.py:cut
Remedy: the step gets the starts, and cuts out all pieces inside of what is compiled.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy as np

import blind


def main():
    loop = blind.Loop("jax_windows_sliced_one_by_one", "launch")
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")

    pieces, length, sensors = loop.size(128, 3), loop.size(64, 8), loop.size(16, 2)
    width, layers = loop.size(4096, 16), loop.size(4, 1)
    keys = jax.random.split(jax.random.key(0), 5 + layers)
    if loop.variant == "healthy":
        rows, wide = loop.size(16384, 16), loop.size(8192, 16)
        weights = [jax.random.normal(key, (wide, wide), jnp.bfloat16) / wide**0.5 for key in keys[:4]]
        x = jax.random.normal(keys[4], (rows, wide), jnp.bfloat16)
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    series = jax.random.normal(keys[0], (loop.size(200_000, 100), sensors))
    sides = [sensors] + [width] * layers
    weights = [jax.random.normal(key, (a, b), jnp.bfloat16) / a**0.5 for key, a, b in zip(keys[5:], sides, sides[1:])]
    random = np.random.default_rng(0)

    def cut(starts):
        pieces_cut = []
        for start in starts:
            pieces_cut.append(series[start:start + length])
        return jnp.stack(pieces_cut)

    def loss_of(weights, batch):
        x = batch.reshape(-1, sensors).astype(jnp.bfloat16)
        for weight in weights:
            x = jnp.maximum(x @ weight, 0)
        return jnp.square(x.astype(jnp.float32)).mean()

    def trained(weights, batch):
        slopes = jax.grad(loss_of)(weights, batch)
        return [weight - (1e-3 * slope).astype(weight.dtype) for weight, slope in zip(weights, slopes)]

    train = jax.jit(trained)

    @jax.jit
    def train_on_pieces_at(weights, series, starts):
        one = lambda start: jax.lax.dynamic_slice_in_dim(series, start, length)
        return trained(weights, jax.vmap(one)(starts))

    def step(i):
        nonlocal weights
        starts = random.integers(0, len(series) - length, pieces)
        if loop.planted:
            weights = train(weights, cut(starts.tolist()))
        else:
            weights = train_on_pieces_at(weights, series, starts.astype(np.int32))

    loop.run(step, lambda: jax.block_until_ready(weights))


if __name__ == "__main__":
    main()
