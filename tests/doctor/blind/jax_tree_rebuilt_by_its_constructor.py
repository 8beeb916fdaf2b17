# SPDX-License-Identifier: Apache-2.0
"""https://github.com/patrick-kidger/equinox/issues/252

A jitted update takes 30 ms when a prior is a field of the model and 0.17 ms when the same prior is a static field, with
the same arithmetic in both. Flattening the prior costs next to nothing; it seems to be putting it together again.

Cause: each call of the jitted update puts its result together by calling the constructors of the priors, which make
their tables anew in Python, while the device has nothing to do.
Line: jax_tree_rebuilt_by_its_constructor.py:second_slopes, called by the constructor
Remedy: unflattening sets the fields as they were, without the constructor.
"""
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import numpy as np

import blind


def second_slopes(heights, distance):
    """Of the natural cubic spline through equally distant points: its second derivatives there."""
    count = len(heights)
    slopes, carried = [0.0] * count, [0.0] * count
    for k in range(1, count - 1):
        pivot = 0.5 * slopes[k - 1] + 2.0
        slopes[k] = -0.5 / pivot
        bend = (heights[k + 1] - 2.0 * heights[k] + heights[k - 1]) / distance
        carried[k] = (3.0 * bend / distance - 0.5 * carried[k - 1]) / pivot
    for k in range(count - 2, -1, -1):
        slopes[k] = slopes[k] * slopes[k + 1] + carried[k]
    return slopes


class Prior:
    """Parameters and the tabulated logarithm of their density, with a spline through it."""

    through_constructor = True  # how a flattened prior becomes a prior again

    def __init__(self, values, heights, low, high):
        self.values, self.heights, self.low, self.high = values, heights, low, high
        self.slopes = np.array(second_slopes(heights, (high - low) / (len(heights) - 1)), np.float32)

    def log_density(self, jnp):
        distance = (self.high - self.low) / (len(self.heights) - 1)
        at = jnp.clip((self.values - self.low) / distance, 0.0, len(self.heights) - 1.001)
        left = at.astype(jnp.int32)
        b = at - left
        a, heights, slopes = 1.0 - b, jnp.array(np.array(self.heights, np.float32)), jnp.array(self.slopes)
        bent = (a**3 - a) * slopes[left] + (b**3 - b) * slopes[left + 1]
        return jnp.sum(a * heights[left] + b * heights[left + 1] + bent * distance**2 / 6.0)

    def flatten(self):
        return (self.values,), (self.heights, self.low, self.high, Kept(self.slopes))

    @classmethod
    def unflatten(cls, rest, children):
        heights, low, high, kept = rest
        if cls.through_constructor:
            return cls(*children, heights, low, high)
        prior = object.__new__(cls)
        prior.values, prior.heights, prior.low, prior.high, prior.slopes = *children, heights, low, high, kept.array
        return prior


class Kept:
    """An array that follows from the other fields, so that any two are alike where those are."""

    def __init__(self, array):
        self.array = array

    def __eq__(self, other):
        return isinstance(other, Kept)

    def __hash__(self):
        return 0


def main():
    loop = blind.Loop("jax_tree_rebuilt_by_its_constructor", "host", steps=160)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    jax.tree_util.register_pytree_node(Prior, Prior.flatten, Prior.unflatten)
    Prior.through_constructor = False
    rows, width = loop.size(16384 if loop.variant == "healthy" else 4096, 8), loop.size(4096, 16)
    layers, points, priors = loop.size(16, 2), loop.size(2400, 20), loop.size(16, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), layers + priors + 1)
    grid = np.linspace(-4.0, 4.0, points)
    heights = [tuple((-0.5 * grid**2 - 0.1 * np.cos(k + grid)).tolist()) for k in range(priors)]
    model = {"layers": [jax.random.normal(key, (width, width), jnp.bfloat16) / width**0.5 for key in keys[:layers]],
             "priors": [Prior(jax.random.normal(key, (width,)), heights[k], -4.0, 4.0)
                        for k, key in enumerate(keys[layers:-1])]}
    x = jax.random.normal(keys[-1], (rows, width), jnp.bfloat16)

    def loss_of(model, x):
        for k, weight in enumerate(model["layers"]):
            scale = 1.0 + 0.1 * jnp.tanh(model["priors"][k % priors].values)
            x = x + jax.nn.relu(x @ weight) * scale.astype(x.dtype)
            x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)).astype(x.dtype)
        fit = jnp.mean(jnp.square(x.astype(jnp.float32) - 0.5))
        return fit - 1e-3 * sum(prior.log_density(jnp) for prior in model["priors"]) / width

    @jax.jit
    def update(model, x):
        slope = jax.grad(loss_of)(model, x)
        return jax.tree_util.tree_map(lambda p, g: p - (1e-2 * g).astype(p.dtype), model, slope)

    for _ in range(2):
        model = jax.block_until_ready(update(model, x))
    begin = time.perf_counter()
    for _ in range(5):
        jax.block_until_ready(update(model, x))
    gpu_ms = 1e3 * (time.perf_counter() - begin) / 5
    Prior.through_constructor = loop.planted

    def step(i):
        nonlocal model
        begin = time.perf_counter()
        model = update(model, x)
        if loop.planted:  # beside this the GPU computes the step; what takes longer holds up the next one
            loop.planted_ms.append(max(0.0, 1e3 * (time.perf_counter() - begin) - gpu_ms))

    loop.run(step, lambda: jax.block_until_ready(model))


if __name__ == "__main__":
    main()
