# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/issues/19108 (also huggingface/transformers#15581, google/flax#2965)

The same encoder with the same weights answers many times more slowly in JAX than in PyTorch, though weights and
inputs lie on the GPU and the first calls are not counted. Its use of the GPU is low.

Cause: the model is called without being compiled as a whole: each sum, product and mean is an operation of its own,
which python dispatches more slowly than the GPU is done with it.
Line: jax_encoder_never_compiled_for_serving.py:attended (its sums and products) and normed (in each layer)
Remedy: the whole call is compiled with jax.jit.
Trap: warming up compiles each small operation only; it takes nothing off the later calls.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_encoder_never_compiled_for_serving", "launch")
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")

    keys = jax.random.split(jax.random.key(0), 5)
    if loop.variant == "healthy":
        rows, wide = loop.size(16384, 16), loop.size(8192, 16)
        weights = [jax.random.normal(key, (wide, wide), jnp.bfloat16) / wide**0.5 for key in keys[:4]]
        x = jax.random.normal(keys[4], (rows, wide), jnp.bfloat16)
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    texts, tokens, width, heads = loop.size(16, 2), loop.size(128, 4), loop.size(2048, 16), loop.size(16, 2)

    def normal(key, *shape):
        return jax.random.normal(key, shape, jnp.bfloat16) / shape[0]**0.5

    layers = []
    for key in jax.random.split(keys[0], loop.size(24, 1)):
        a, b, c, d = jax.random.split(key, 4)
        layers.append({"mix": normal(a, width, 3 * width), "out": normal(b, width, width),
                       "up": normal(c, width, 4 * width), "down": normal(d, 4 * width, width),
                       "scales": jnp.ones((2, width), jnp.bfloat16), "shifts": jnp.zeros((2, width), jnp.bfloat16)})
    batches = list(jax.random.normal(keys[1], (4, texts, tokens, width), jnp.bfloat16))

    def normed(x, scale, shift):
        x = x - x.mean(axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift

    def attended(x, layer):
        q, k, v = jnp.split((x @ layer["mix"]).reshape(texts, tokens, 3 * heads, -1), 3, axis=2)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1]**-0.5, axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ layer["out"]

    def encode(layers, x):
        for layer in layers:
            x = x + attended(normed(x, layer["scales"][0], layer["shifts"][0]), layer)
            y = normed(x, layer["scales"][1], layer["shifts"][1])
            x = x + jax.nn.gelu(y @ layer["up"]) @ layer["down"]
        return x.mean(axis=1)

    call = encode if loop.planted else jax.jit(encode)
    answer = None

    def step(i):
        nonlocal answer
        answer = call(layers, batches[i % len(batches)])

    loop.run(step, lambda: jax.block_until_ready(answer))


if __name__ == "__main__":
    main()
