# SPDX-License-Identifier: Apache-2.0
"""github.com/jax-ml/jax/issues/817

A rating system that another compiler fits in a tenth of a second takes twenty seconds here, although the arithmetic
is the same.

Cause: every rating period has its own number of games, and for each number the jitted update is traced and compiled
anew while the device has nothing to do.
Line: jitted_again_for_every_period.py:fit_period
Remedy: the games of a period are padded to one size and masked.
"""
import time

import numpy as np

import blind


def games_of_period(period, players, fewest, most, pad):
    """Winners, losers and a weight for each game; with `pad` as many rows as the largest period has."""
    rng = np.random.default_rng(period)
    games = int(rng.integers(fewest, most))
    rows = most if pad else games
    pairs, weight = np.zeros((2, rows), np.int32), np.zeros(rows, np.float32)
    pairs[:, :games] = rng.integers(0, players, size=(2, games))
    weight[:games] = 1.0
    return pairs, weight


def main():
    loop = blind.Loop("jitted_again_for_every_period", "recompile", steps=480)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    players, width, layers = loop.size(20000, 16), loop.size(2048, 8), loop.size(6, 2)
    fewest, most, sweeps = loop.size(28000, 8), loop.size(30720, 16), loop.size(80, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + 2)
    scaled = lambda key, *shape: (jax.random.normal(key, shape) / width**0.5).astype(jnp.bfloat16)
    state = {"skills": scaled(keys[0], players, width), "head": scaled(keys[1], width),
             "layers": jnp.stack([scaled(key, width, width) for key in keys[2:]])}

    def surprise(state, pairs, weight):
        edge = state["skills"][pairs[0]] - state["skills"][pairs[1]]
        edge, _ = jax.lax.scan(lambda h, layer: (h + jnp.tanh(h @ layer), None), edge, state["layers"])
        score = (edge @ state["head"]).astype(jnp.float32)
        return jnp.sum(jax.nn.softplus(-score) * weight) / jnp.sum(weight)

    @jax.jit
    def sweep(state, pairs, weight):
        value, slope = jax.value_and_grad(surprise)(state, pairs, weight)
        return jax.tree_util.tree_map(lambda s, g: s - (1e-3 * g).astype(s.dtype), state, slope), value

    jax.block_until_ready(sweep(state, *games_of_period(0, players, fewest, most, True)))
    current, history = [None, None], []

    def fit_period(i):
        """The first sweep of a period, for which its games are fetched; the device has finished the one before."""
        period = 0 if loop.variant == "healthy" else 1 + i // sweeps
        current[:] = [jnp.asarray(a) for a in games_of_period(period, players, fewest, most, not loop.planted)]
        begin = time.perf_counter()
        fitted = sweep(state, *current)
        loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
        return fitted

    def step(i):
        nonlocal state
        if i % sweeps == 0:
            state, value = fit_period(i)
        else:
            state, value = sweep(state, *current)
            loop.planted_ms.append(0.0)
        if i % sweeps == sweeps - 1:
            history.append(float(value))

    loop.run(step, lambda: jax.block_until_ready(state))


if __name__ == "__main__":
    main()
