# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/5328 (also instadeepai/jumanji#96)

A few hundred items are drawn without replacement from a large set in every step. Drawing them is slower than in another
library by orders of magnitude, and slower than what is done with them; drawing with replacement is fast.

Cause: to draw without replacement the library permutes all items, by sorting their indices by random keys, several
times over so that equal keys do no harm, and keeps the first few. The larger the buffer is, the longer that takes.
Line: jax_whole_buffer_permuted_to_draw_a_batch.py:step (its call of update, which calls drawn).
Remedy: indices are drawn with replacement; among so many items hardly one is drawn twice.
Trap: the draw is compiled along with the update, and only a small batch comes out of it.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_whole_buffer_permuted_to_draw_a_batch", "memory", steps=150)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")

    if loop.variant == "healthy":
        rows, width = loop.size(16384, 16), loop.size(8192, 16)
        keys = jax.random.split(jax.random.PRNGKey(0), 5)
        weights = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:4]]
        x = jax.random.normal(keys[4], (rows, width), jnp.bfloat16)
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    held, seen, size, updates = loop.size(20_000_000, 300), loop.size(16, 4), loop.size(4096, 8), loop.size(4, 2)
    width, layers = loop.size(4096, 16), loop.size(4, 1)
    keys = jax.random.split(jax.random.PRNGKey(0), 3 + layers)
    buffer = {"seen": jax.random.normal(keys[0], (held, seen), jnp.bfloat16),
              "gained": jax.random.normal(keys[1], (held,))}
    sides = [seen] + [width] * layers + [1]
    network = [jax.random.normal(jax.random.fold_in(keys[2], n), (a, b)) / a**0.5
               for n, (a, b) in enumerate(zip(sides, sides[1:]))]

    def drawn(key):
        """The indices of one batch in the buffer."""
        if loop.planted:
            return jax.random.choice(key, held, (size,), replace=False)
        return jax.random.randint(key, (size,), 0, held)

    def loss_of(network, batch):
        x = batch["seen"]
        for matrix in network[:-1]:
            x = jax.nn.relu(x @ matrix.astype(jnp.bfloat16))
        return jnp.mean((x.astype(jnp.float32) @ network[-1] - batch["gained"][:, None]) ** 2)

    @jax.jit
    def update(network, buffer, key):
        picked = drawn(key)
        batch = {name: part[picked] for name, part in buffer.items()}
        gradients = jax.grad(loss_of)(network, batch)
        return [matrix - 1e-5 * gradient for matrix, gradient in zip(network, gradients)]

    draws = list(jax.random.split(jax.random.PRNGKey(1), 64))

    def step(i):
        nonlocal network
        for n in range(updates):
            network = update(network, buffer, draws[(i * updates + n) % len(draws)])

    loop.run(step, lambda: jax.block_until_ready(network))


if __name__ == "__main__":
    main()
