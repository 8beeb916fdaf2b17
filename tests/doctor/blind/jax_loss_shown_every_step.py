# SPDX-License-Identifier: Apache-2.0
"""https://github.com/poets-ai/elegy/issues/141

With the progress bar that shows the loss of every step the utilisation of the GPU falls from 99% to less than 85%;
with an output after each epoch it does not.

Cause: showing a value waits until the device has computed it, so the next batch is prepared and dispatched only when
the device has nothing left to do.
Line: jax_loss_shown_every_step.py:show
Remedy: show the loss of the step before, when the next one has been dispatched.
"""
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy as np

import blind


def main():
    loop = blind.Loop("jax_loss_shown_every_step", "sync", steps=220)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    width = loop.size(8192 if healthy else 4096, 16)
    rows, layers = loop.size(16384 if healthy else 8192, 16), loop.size(3 if healthy else 8, 2)
    noisy = loop.size(128, 2)
    rng = np.random.default_rng(0)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 1)
    params = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:layers]]
    x = jax.random.normal(keys[-1], (rows, width), jnp.bfloat16)

    def loss_of(params, x, noise):
        h = x.at[:noise.shape[0]].add(noise.astype(x.dtype))
        for k, weight in enumerate(params):
            h = h @ weight
            h = jax.nn.relu(h) if k % 3 == 2 or not healthy else h
        return jnp.mean(jnp.square(h.astype(jnp.float32)))

    @jax.jit
    def update(params, x, noise):
        loss, slope = jax.value_and_grad(loss_of)(params, x, noise)
        return [p - 1e-3 * g for p, g in zip(params, slope)], loss

    def prepare():
        """New noise for some rows, drawn on the host: 524288 numbers."""
        return rng.standard_normal((noisy, width), dtype=np.float32)

    losses, shown, ready = [], [], None
    still = jnp.zeros((noisy, width), jnp.float32)

    def show():
        if losses:
            shown.append(f"loss {float(losses.pop()):.4f}")

    def step(i):
        nonlocal params, ready
        noise = still if healthy else jax.device_put(prepare())
        if loop.planted:  # the update cannot begin before the noise is there
            noise.block_until_ready()
        params, loss = update(params, x, noise)
        if loop.planted and ready is not None:  # since the loss was there the device had nothing to do
            loop.planted_ms.append(1e3 * (time.perf_counter() - ready))
        if healthy:
            if i % 50 == 49:
                shown.append(f"loss {float(loss):.4f}")
        elif loop.planted:
            losses.append(loss)
            show()
            ready = time.perf_counter()
        else:
            show()
            losses.append(loss)

    loop.run(step, lambda: jax.block_until_ready(params))


if __name__ == "__main__":
    main()
