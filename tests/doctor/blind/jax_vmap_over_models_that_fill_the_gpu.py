# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/25703 (also jax-ml/jax#15339, jax-ml/jax#26568)

I have an ensemble of networks and call one after the other in a Python loop. I had expected that they run in parallel
and much faster under vmap, but it takes as long as the loop, if not longer.

Cause: none. Each network alone fills the GPU with large products, and the loop has launched them all long before the
first is done; side by side they would only share it.
Line: jax_vmap_over_models_that_fill_the_gpu.py:step
Remedy: there is none to find; `fixed` does the obvious thing and maps one call over all networks.
Trap: a Python loop over models, each a call of its own, looks like what vmap was made for.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_vmap_over_models_that_fill_the_gpu", "none", steps=250)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    models, layers = (1, loop.size(12, 3)) if healthy else (loop.size(4, 2), 3)
    rows, width = loop.size(8192, 16), loop.size(8192, 16)
    keys = jax.random.split(jax.random.PRNGKey(0), models * layers + 1)
    ensemble = [[jax.random.normal(keys[m * layers + n], (width, width), jnp.bfloat16) / width**0.5
                 for n in range(layers)] for m in range(models)]
    x = jax.random.normal(keys[-1], (rows, width), jnp.bfloat16)
    stacked = None
    if loop.variant == "fixed":
        stacked, ensemble = [jnp.stack(parts) for parts in zip(*ensemble)], []

    def network(weights, x):
        for weight in weights:
            x = x @ weight
        return jax.nn.relu(x)

    one, mapped = jax.jit(network), jax.jit(jax.vmap(network, in_axes=(0, None)))
    found = None

    def step(i):
        nonlocal found
        found = mapped(stacked, x) if stacked else [one(weights, x) for weights in ensemble]

    loop.run(step, lambda: jax.block_until_ready(found))


if __name__ == "__main__":
    main()
