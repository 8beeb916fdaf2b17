# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/2620 (a reviewer's remark on the same line: p-doom/jasmine#152)

The option that stops a training at the first NaN was put at the top of the script when the loss exploded once, and has
stayed there. The training works, and takes several times as long as it should.

Cause: after each call of a compiled function all of its results, so all weights, are copied to the host and looked
through there; the next step is launched only after that.
Line: jax_nans_looked_for_on_the_host.py:step (its call of update)
Remedy: the option is off; whether the loss is a number is asked every hundredth step.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_nans_looked_for_on_the_host", "copy", steps=120, warm_up=10)
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

    rows, width, layers = loop.size(32768, 8), loop.size(2048, 16), loop.size(7, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 2)
    weights = [jax.random.normal(key, (width, width)) / width**0.5 for key in keys[:layers]]
    batches = list(jax.random.normal(keys[-2], (2, rows, width), jnp.bfloat16))
    truth = jax.random.normal(keys[-1], (rows, width), jnp.bfloat16)

    def loss_of(weights, x):
        for weight in weights:
            x = jax.nn.relu(x @ weight.astype(jnp.bfloat16))
        return jnp.square((x - truth).astype(jnp.float32)).mean()

    @jax.jit
    def update(weights, x):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x)
        return jax.tree.map(lambda weight, gradient: weight - 1e-2 * gradient, weights, gradients), loss

    jax.config.update("jax_debug_nans", loop.planted)
    loss = None

    def step(i):
        nonlocal weights, loss
        weights, loss = update(weights, batches[i % len(batches)])
        if i % 100 == 99 and not jnp.isfinite(loss):
            raise FloatingPointError("the loss is no number")

    loop.run(step, lambda: jax.block_until_ready((weights, loss)))


if __name__ == "__main__":
    main()
