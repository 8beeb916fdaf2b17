# SPDX-License-Identifier: Apache-2.0
"""https://github.com/keras-team/keras/issues/19992 (also keras-team/keras#8681, NVIDIA-Merlin/models#602)

My recommender has one large table of embeddings and a small network behind it. After the move to the new version of the
library each step takes several times as long, and it gets slower the more items are in the table, not in the batch.

Cause: the gradient of a look-up is an array as large as the table, zero nearly everywhere, and the optimizer moves all
of it through memory, with both moments and the table itself, to change a few rows in a hundred.
Line: jax_whole_table_updated_for_a_few_rows.py:step, its call of the compiled function (dense in it).
Remedy: the gradient is taken of the rows that were looked up, and only those rows and their moments are changed.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy

import blind


def main():
    loop = blind.Loop("jax_whole_table_updated_for_a_few_rows", "memory", steps=700)
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

    items, side, fields = loop.size(4_000_000, 256), loop.size(128, 4), loop.size(8, 2)
    batch, width, layers = loop.size(16384, 4), loop.size(2048, 16), loop.size(4, 1)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 4)
    table = jax.random.normal(keys[0], (items, side), jnp.float32)
    table = (table, jnp.zeros_like(table), jnp.zeros_like(table))  # with its moments
    sizes = [fields * side] + [width] * layers
    weights = [jax.random.normal(key, pair, jnp.bfloat16) / pair[0]**0.5
               for key, pair in zip(keys[1:], zip(sizes, sizes[1:]))]
    y = jax.random.normal(keys[-1], (batch, width), jnp.bfloat16)
    looked_up = batch * fields

    def ids_of(at):
        """Rows all over the table; of a batch, none occurs twice."""
        return (at * 7919 + jnp.arange(looked_up) * (items // looked_up)) % items

    def loss(rows, weights, y):
        x = rows.reshape(batch, fields * side).astype(jnp.bfloat16)
        for weight in weights:
            x = jax.nn.relu(x @ weight)
        return jnp.mean((x - y).astype(jnp.float32) ** 2)

    def adam(value, first, second, slope):
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope * slope
        return value - 1e-4 * first / (jnp.sqrt(second) + 1e-8), first, second

    def dense(table, ids, weights, y):
        slopes = jax.grad(lambda values, weights: loss(values[ids], weights, y), argnums=(0, 1))
        slope, of_weights = slopes(table[0], weights)
        return adam(*table, slope), of_weights

    def lazy(table, ids, weights, y):
        rows = [part[ids] for part in table]
        slope, of_weights = jax.grad(loss, argnums=(0, 1))(rows[0], weights, y)
        changed = adam(*rows, slope)
        return tuple(part.at[ids].set(new, unique_indices=True) for part, new in zip(table, changed)), of_weights

    def train(table, weights, y, at):
        table, slopes = (dense if loop.planted else lazy)(table, ids_of(at), weights, y)
        return table, [weight - 1e-3 * slope for weight, slope in zip(weights, slopes)]

    train = jax.jit(train, donate_argnums=(0, 1))

    def step(i):
        nonlocal table, weights
        table, weights = train(table, weights, y, numpy.int32(i))

    loop.run(step, lambda: jax.block_until_ready((table, weights)))


if __name__ == "__main__":
    main()
