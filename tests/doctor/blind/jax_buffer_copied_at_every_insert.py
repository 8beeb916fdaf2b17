# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/16647 (also instadeepai/flashbax#6, hr0nix/dejax#2)

My replay buffer lives on the device and is changed inside a jitted function. Each time that I modify it the whole of it
is copied, which is quite some overhead with a hundred thousand entries; a transition is a few kilobytes.

Cause: the caller of the jitted insertion may still need the old buffer, so each insertion writes a whole new one, and
the few new rows into that.
Line: jax_buffer_copied_at_every_insert.py:gather_experience, its calls of insert
Remedy: the buffer is donated to the insertion, which then changes it where it lies.
"""
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_buffer_copied_at_every_insert", "memory", steps=260)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    capacity, width, arriving, inserts = loop.size(49152, 64), loop.size(8192, 16), loop.size(256, 4), 4
    drawn, hidden, layers = loop.size(16384 if healthy else 4096, 8), loop.size(4096, 16), loop.size(15, 3)
    if healthy:
        loop.steps = min(loop.steps, 160)
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 2 * inserts + layers + 4))
    buffer = {name: jax.random.normal(next(keys), (capacity, width), jnp.float32) for name in ("now", "then")}
    fresh = [{name: jax.random.normal(next(keys), (arriving, width), jnp.float32) for name in buffer}
             for _ in range(inserts)]
    sides = [width] + [hidden] * layers
    params = [jax.random.normal(next(keys), (a, b), jnp.bfloat16) / a**0.5 for a, b in zip(sides, sides[1:])]

    def written(buffer, rows, at):
        return {name: jax.lax.dynamic_update_slice(buffer[name], rows[name], (at, 0)) for name in buffer}

    def judged(params, x):
        for k, weight in enumerate(params):
            x = x @ weight
            x = jax.nn.relu(x) if k % 3 == 2 else x
        return x.astype(jnp.float32)

    def loss_of(params, now, then):
        goal = jax.lax.stop_gradient(jnp.mean(then, axis=1, keepdims=True))
        return jnp.mean(jnp.square(judged(params, now) - goal))

    @jax.jit
    def learn(params, buffer, i):
        rows = jax.random.randint(jax.random.PRNGKey(i), (drawn,), 0, capacity)
        now, then = (buffer[name][rows].astype(jnp.bfloat16) for name in ("now", "then"))
        loss, slope = jax.value_and_grad(loss_of)(params, now, then.astype(jnp.float32))
        return [p - (1e-3 * g).astype(p.dtype) for p, g in zip(params, slope)], loss

    copying, donating = jax.jit(written), jax.jit(written, donate_argnums=0)
    insert = copying if loop.planted else donating
    begun = 0  # where the next rows go

    def gather_experience(insert, buffer):
        nonlocal begun
        for rows in fresh:
            buffer = insert(buffer, rows, begun)
            begun = (begun + arriving) % capacity
        return buffer

    def timed(insert):
        nonlocal buffer
        for turns in (1, 8):  # the first turn compiles
            begin = time.perf_counter()
            for _ in range(turns):
                buffer = gather_experience(insert, buffer)
            jax.block_until_ready(buffer)
        return 1e3 * (time.perf_counter() - begin) / 8

    extra_ms = 0.0
    if loop.planted:  # what a step's insertions take more than those into a donated buffer
        blind.take_gpu()
        extra_ms = max(0.0, timed(copying) - timed(donating))

    latest = None

    def step(i):
        nonlocal params, buffer, latest
        buffer = gather_experience(insert, buffer)
        params, loss = learn(params, buffer, i)
        if latest is not None:  # the host stays one step ahead, so that not too many buffers wait for their turn
            latest.block_until_ready()
        latest = loss
        if loop.planted:
            loop.planted_ms.append(extra_ms)

    loop.run(step, lambda: jax.block_until_ready((params, buffer)))


if __name__ == "__main__":
    main()
