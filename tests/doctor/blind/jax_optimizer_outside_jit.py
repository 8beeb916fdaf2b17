# SPDX-License-Identifier: Apache-2.0
"""https://github.com/google-deepmind/optax/issues/319 (also google/jaxopt#101)

The example of the optimizer library takes 28 s on the GPU and 2 s on the processor; my own training has the same
problem, and there too it is the part of the optimizer that is slow.

Cause: only the gradient is compiled; the optimizer runs operation by operation, a dozen dispatches of tiny kernels for
each weight.
Line: jax_optimizer_outside_jit.py:adam
Remedy: gradient and optimizer in one compiled function.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_optimizer_outside_jit", "launch", steps=220)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    width = loop.size(8192 if healthy else 512, 16)
    rows, layers = loop.size(16384 if healthy else 65536, 16), loop.size(3 if healthy else 24, 2)
    kept = jnp.bfloat16 if healthy else jnp.float32
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 1)
    params = [{"weight": jax.random.normal(key, (width, width), kept) / width**0.5} for key in keys[:layers]]
    if not healthy:
        params = [{**layer, "bias": jnp.zeros(width, kept)} for layer in params]
    x = jax.random.normal(keys[-1], (rows, width), jnp.bfloat16)

    def loss_of(params, x):
        for k, layer in enumerate(params):
            x = x @ layer["weight"].astype(x.dtype)
            x = x + layer["bias"].astype(x.dtype) if "bias" in layer else x
            x = jax.nn.relu(x) if k % 3 == 2 or not healthy else x
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    tree_map = jax.tree_util.tree_map

    def adam(params, slope, state):
        """One step of Adam for each weight: the new weights and the new state."""
        count = state["count"] + 1
        mean = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], slope)
        square = tree_map(lambda s, g: 0.999 * s + 0.001 * g * g, state["square"], slope)
        due, squares_due = 1 - 0.9**count, 1 - 0.999**count

        def changed(p, m, s):
            return p - 1e-4 * (m / due) / (jnp.sqrt(s / squares_due) + 1e-6)

        return tree_map(changed, params, mean, square), {"mean": mean, "square": square, "count": count}

    def descent(params, slope, state):
        return tree_map(lambda p, g: p - 1e-3 * g, params, slope), state

    gradient = jax.jit(jax.grad(loss_of)) if loop.planted else jax.grad(loss_of)
    change = descent if healthy else adam

    def update(params, state, x):
        return change(params, gradient(params, x), state)

    update = update if loop.planted else jax.jit(update)
    zeros = tree_map(jnp.zeros_like, params)
    state = {} if healthy else {"mean": zeros, "square": zeros, "count": jnp.zeros(())}

    def step(i):
        nonlocal params, state
        params, state = update(params, state, x)

    loop.run(step, lambda: jax.block_until_ready(params))


if __name__ == "__main__":
    main()
