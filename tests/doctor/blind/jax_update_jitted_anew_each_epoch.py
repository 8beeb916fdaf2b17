# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/9288 (also jax-ml/jax#2251)

I thought a function is compiled once and then kept. With a lambda in the call of jit it is compiled again each time
round; a local function that is jitted inside another one is just as slow.

Cause: each epoch wraps a new lambda in jit. What has been compiled is kept by the identity of the function, so every
epoch traces and compiles the same program again while the GPU is idle.
Line: jax_update_jitted_anew_each_epoch.py:step, its call of the new function (make_update wraps it)
Remedy: the function is made and jitted once, before the first epoch; the rate is an argument of it.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_update_jitted_anew_each_epoch", "recompile", steps=500)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
    rows, width, layers = loop.size(8192, 16), loop.size(4096, 16), loop.size(4, 2)
    if loop.variant == "healthy":
        rows, width = loop.size(16384, 16), loop.size(8192, 16)
    epoch = loop.size(50, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 2)
    weights = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:layers]]
    x = jax.random.normal(keys[layers], (rows, width), jnp.bfloat16)
    y = jax.random.normal(keys[layers + 1], (rows, width), jnp.bfloat16)

    if loop.variant == "healthy":
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    def loss(weights, x, y):
        for weight in weights:
            x = jax.nn.relu(x @ weight)
        return jnp.mean((x - y).astype(jnp.float32) ** 2)

    def update(weights, x, y, rate):
        slopes = jax.grad(loss)(weights, x, y)
        return [weight - (rate * slope).astype(weight.dtype) for weight, slope in zip(weights, slopes)]

    def make_update():
        return jax.jit(lambda weights, x, y, rate: update(weights, x, y, rate))

    call = make_update()

    def step(i):
        nonlocal weights, call
        if loop.planted and i % epoch == 0:  # a new epoch begins
            call = make_update()
        weights = call(weights, x, y, 1e-3 / (1 + i // epoch))

    loop.run(step, lambda: jax.block_until_ready(weights))


if __name__ == "__main__":
    main()
