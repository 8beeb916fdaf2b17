# SPDX-License-Identifier: Apache-2.0
"""https://github.com/google/flax/issues/924

With 64-bit numbers switched on, one step of the optimizer turns all my float32 parameters into float64, and training
is slower than it should be. I had asked for float32 everywhere.

Cause: 64-bit numbers are switched on for another part of the program. The table of learning rates comes from NumPy in
float64; multiplied with it the first update becomes float64, then the parameters, and with them the whole network.
Line: jax_optimizer_widens_everything.py:step, its call of the compiled function (update in it widens).
Remedy: the table in float32; nothing else changes.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy as np

import blind


def main():
    loop = blind.Loop("jax_optimizer_widens_everything", "precision", steps=300)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    jax.config.update("jax_enable_x64", True)  # the statistics of the data need it

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

    rows, width, layers = loop.size(32768, 16), loop.size(1024, 16), loop.size(6, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 2)
    params = [jax.random.normal(key, (width, width), jnp.float32) / width**0.5 for key in keys[:layers]]
    moments = [(jnp.zeros_like(weight), jnp.zeros_like(weight)) for weight in params]
    x = jax.random.normal(keys[layers], (rows, width), jnp.float32)
    y = jax.random.normal(keys[layers + 1], (rows, width), jnp.float32)
    total = loop.steps + loop.warm_up
    rates = 1e-4 * (1 + np.cos(np.linspace(0, np.pi, total)))  # a cosine, falling to zero
    if not loop.planted:
        rates = rates.astype(np.float32)

    def network(params, x):
        for weight in params:
            centred = x - x.mean(axis=1, keepdims=True)
            scaled = centred * jax.lax.rsqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)
            x = x + jax.nn.relu(scaled @ weight)
        return x

    def loss(params, x, y):
        return jnp.mean((network(params, x) - y) ** 2)

    def update(weight, moment, slope, rate):
        first, second = 0.9 * moment[0] + 0.1 * slope, 0.99 * moment[1] + 0.01 * slope * slope
        return weight - rate * first / (jnp.sqrt(second) + 1e-8), (first, second)

    @jax.jit
    def train(params, moments, x, y, rate):
        slopes = jax.grad(loss)(params, x, y)
        changed = [update(*each, rate) for each in zip(params, moments, slopes)]
        return [each[0] for each in changed], [each[1] for each in changed]

    def step(i):
        nonlocal params, moments
        params, moments = train(params, moments, x, y, rates[i])

    loop.run(step, lambda: jax.block_until_ready((params, moments)))
    assert params[0].dtype == (jnp.float64 if loop.planted else jnp.float32)


if __name__ == "__main__":
    main()
