# SPDX-License-Identifier: Apache-2.0
"""github.com/Physical-Intelligence/openpi/issues/441.

Policy training in JAX runs well, then stands still for a while at every thousandth step, and goes on as if nothing
had happened.

Cause: the checkpoint is fetched and written to disk inside the loop, while the device has nothing to do.
Line: jax_checkpoint_stops_the_training.py:save.
Remedy: `fixed` only fetches a host copy in the loop; a thread writes it.
"""
import os
import tempfile
import threading
import time

import numpy as np

import blind


def save(state, path):
    with open(path, "wb") as file:
        for array in state:
            np.save(file, array)
        file.flush()
        os.fsync(file.fileno())
    os.remove(path)  # keep the temporary folder small


def main():
    loop = blind.Loop("jax_checkpoint_stops_the_training", "checkpoint", steps=900)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    width, layers, batch = loop.size(4096, 16), loop.size(8, 2), loop.size(4096, 4)
    every = loop.size(150, 2) if loop.variant != "healthy" else 10**9
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 2)
    state = [jax.random.normal(key, (width, width)) / width**0.5 for key in keys[:layers]]
    x = jax.random.normal(keys[-2], (batch, width), jnp.bfloat16)
    y = jax.random.normal(keys[-1], (batch, width), jnp.bfloat16)

    def loss_of(state):
        h = x
        for weight in state:
            h = h + jnp.tanh(h @ weight.astype(jnp.bfloat16))
        return jnp.mean((h - y).astype(jnp.float32) ** 2)

    @jax.jit
    def update(state):
        return [weight - 1e-3 * gradient for weight, gradient in zip(state, jax.grad(loss_of)(state))]

    with tempfile.TemporaryDirectory() as folder:
        writers = []

        def step(i):
            nonlocal state
            state = update(state)
            if (i + 1) % every:
                loop.planted_ms.append(0.0)
                return
            jax.block_until_ready(state)
            begin = time.perf_counter()
            on_host, path = [np.asarray(weight) for weight in state], os.path.join(folder, f"step{i}.npy")
            if loop.planted:
                save(on_host, path)
            else:
                for writer in writers:
                    writer.join()
                writers[:] = [threading.Thread(target=save, args=(on_host, path))]
                writers[0].start()
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))

        loop.run(step, lambda: jax.block_until_ready(state))
        for writer in writers:
            writer.join()


if __name__ == "__main__":
    main()
