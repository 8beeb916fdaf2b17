# SPDX-License-Identifier: Apache-2.0
"""https://github.com/reservoirpy/reservoirpy/pull/239

A reservoir is run over a batch of time series on the GPU. A batch takes exactly as many times as long as one series as
there are series in it, for every size of the reservoir; the GPU could do them all together.

Cause: the batch goes through lax.map, which the compiler turns into a loop over the series, and each of them into a
loop over its times: one product of a matrix and a vector after the other, each a kernel or two of few microseconds.
Line: jax_series_mapped_one_after_another.py:step (its call of run, which calls mapped).
Remedy: jax.vmap, so that all series take each step together, in one product of two matrices.
Trap: everything is compiled, in one call, and nothing is read back.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_series_mapped_one_after_another", "launch", steps=100, warm_up=10)
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

    series, times, inputs, units = loop.size(32, 3), loop.size(128, 5), loop.size(8, 2), loop.size(512, 8)
    width, layers = loop.size(8192, 16), loop.size(6, 1)
    keys = jax.random.split(jax.random.PRNGKey(0), 3 + layers)
    recurrent = jax.random.normal(keys[0], (units, units)) * 0.9 / units**0.5
    entering = jax.random.uniform(keys[1], (inputs, units), minval=-0.5, maxval=0.5)
    batches = list(jax.random.normal(keys[2], (4, series, times, inputs)))
    sides = [units] + [width] * layers
    readout = [jax.random.normal(key, (a, b), jnp.bfloat16) / a**0.5 for key, a, b in zip(keys[3:], sides, sides[1:])]

    def states_of(one):
        """The states of the reservoir at all times of one series."""

        def advance(state, seen):
            state = 0.7 * state + 0.3 * jnp.tanh(state @ recurrent + seen @ entering)
            return state, state

        return jax.lax.scan(advance, jnp.zeros(units), one)[1]

    def mapped(batch):
        return jax.lax.map(states_of, batch) if loop.planted else jax.vmap(states_of)(batch)

    @jax.jit
    def run(batch, readout):
        """What a network makes of all states, a number for each series."""
        x = mapped(batch).reshape(-1, units).astype(jnp.bfloat16)
        for matrix in readout:
            x = jnp.tanh(x @ matrix)
        return x.astype(jnp.float32).reshape(series, -1).mean(axis=1)

    answers = None

    def step(i):
        nonlocal answers
        answers = run(batches[i % len(batches)], readout)

    loop.run(step, lambda: jax.block_until_ready(answers))


if __name__ == "__main__":
    main()
