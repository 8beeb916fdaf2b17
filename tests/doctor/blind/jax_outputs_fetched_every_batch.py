# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/36651 (also p-doom/jasmine#158, nanoporetech/bonito#86)

Every np.asarray of a result on the GPU shows as a copy with a long wait on the host behind it, the longer the larger
the array is, and the next computation does not begin before both are over; the link could do far more.

Cause: the result of each batch is copied to pageable memory of the host at once, and only then the next batch is
dispatched, so the device has nothing to do during the copy.
Line: jax_outputs_fetched_every_batch.py:fetch
Remedy: the copy is begun as soon as the batch is dispatched, and waited for when the next one has been dispatched too.
"""
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy as np

import blind


def main():
    loop = blind.Loop("jax_outputs_fetched_every_batch", "copy", steps=280)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    width, rows = loop.size(8192 if healthy else 4096, 16), loop.size(16384 if healthy else 8192, 16)
    layers, classes = loop.size(9 if healthy else 40, 2), loop.size(64 if healthy else 512, 8)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 2)
    params = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:layers]]
    last = jax.random.normal(keys[-2], (width, classes), jnp.bfloat16) / width**0.5
    x = jax.random.normal(keys[-1], (rows, width), jnp.bfloat16)

    @jax.jit
    def predict(params, last, x, shift):
        x = x + shift.astype(x.dtype)
        for k, weight in enumerate(params):
            x = x @ weight
            x = jax.nn.relu(x) if k % 3 == 2 or not healthy else x
        return (x @ last).astype(jnp.float32)  # 17 MB for each batch

    shifts = [jnp.float32(0.01 * k) for k in range(4)]
    kept = np.zeros((loop.size(4, 1), rows, classes), np.float32)  # what is made of the results, here their place only
    waiting, ready, latest = [], None, None

    def fetch(i, out):
        kept[i % len(kept)] = np.asarray(out)

    def step(i):
        nonlocal ready, latest
        out = latest = predict(params, last, x, shifts[i % 4])
        if healthy:
            return
        if not loop.planted:
            out.copy_to_host_async()
            waiting.append((i, out))
            if len(waiting) > 1:
                fetch(*waiting.pop(0))
            return
        if ready is not None:  # from the end of the batch before until this one is dispatched
            loop.planted_ms.append(1e3 * (time.perf_counter() - ready))
        out.block_until_ready()  # np.asarray would wait for it as well
        ready = time.perf_counter()
        fetch(i, out)

    loop.run(step, lambda: jax.block_until_ready(latest))


if __name__ == "__main__":
    main()
