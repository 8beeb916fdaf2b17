# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/2491 (also jax-ml/jax#810, #29946)

A scan is compiled, its length is known, and each of its steps does next to nothing; nevertheless it is far slower on
the GPU than I expected, slower than on the CPU. In our case it is what credits rewards to earlier actions.

Cause: the compiler turns each step of a scan into kernels of its own, which the host launches one round after the
other. Here they handle a few hundred numbers each, so that two thousand rounds consist of launching alone.
Line: jax_advantages_in_a_scan_of_tiny_steps.py:step, its call of the compiled function (advantages_of in it).
Remedy: the scan is unrolled, so that many of its steps become one kernel.
Trap: everything is compiled, and the GPU seems to be busy all the time.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_advantages_in_a_scan_of_tiny_steps", "launch", steps=600)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")

    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 300)
        rows, width = loop.size(16384, 16), loop.size(8192, 16)
        keys = jax.random.split(jax.random.PRNGKey(0), 5)
        weights = [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:4]]
        x = jax.random.normal(keys[4], (rows, width), jnp.bfloat16)
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    moves, games, seen = loop.size(2048, 32), loop.size(128, 2), loop.size(256, 4)
    width, layers, unroll = loop.size(1024, 8), loop.size(3, 1), 1 if loop.planted else 32
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 4)
    sizes = [seen] + [width] * layers
    weights = [jax.random.normal(key, pair) / pair[0] ** 0.5 for key, pair in zip(keys, zip(sizes, sizes[1:]))]
    weights.append(jax.random.normal(keys[-4], (width, 1)) / width)
    observed = jax.random.normal(keys[-3], (moves, games, seen), jnp.bfloat16)
    rewards = jax.random.normal(keys[-2], (moves, games))
    goes_on = (jax.random.uniform(keys[-1], (moves, games)) > 0.01).astype(jnp.float32)

    def values_of(weights, observed):
        x = observed
        for weight in weights[:-1]:
            x = jax.nn.relu(x @ weight.astype(jnp.bfloat16))
        return (x @ weights[-1].astype(jnp.bfloat16))[..., 0].astype(jnp.float32)

    def advantages_of(rewards, values, goes_on):
        def earlier(carried, now):
            advantage, next_value = carried
            reward, value, on = now
            advantage = reward + 0.99 * next_value * on - value + 0.99 * 0.95 * on * advantage
            return (advantage, value), advantage

        start = (jnp.zeros(games), values[-1])
        return jax.lax.scan(earlier, start, (rewards, values, goes_on), reverse=True, unroll=unroll)[1]

    def loss(weights, goals, observed):
        return jnp.mean((values_of(weights, observed) - goals) ** 2)

    @jax.jit
    def update(weights, observed, rewards, goes_on):
        values = values_of(weights, observed)
        goals = values + advantages_of(rewards, values, goes_on)
        slopes = jax.grad(loss)(weights, goals, observed)
        return [weight - 1e-5 * slope for weight, slope in zip(weights, slopes)]

    def step(i):
        nonlocal weights
        weights = update(weights, observed, rewards, goes_on)

    loop.run(step, lambda: jax.block_until_ready(weights))


if __name__ == "__main__":
    main()
