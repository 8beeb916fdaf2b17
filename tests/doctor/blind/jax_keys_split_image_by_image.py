# SPDX-License-Identifier: Apache-2.0
"""https://github.com/jax-ml/jax/issues/968 (also antonioterpin/synthpix#252, kora-labs/chromax#16)

Each image of a batch is to be moved and brightened at random, with a random key of its own. Making the random numbers
takes longer than the training step; NumPy is a hundred times faster at it, on the CPU.

Cause: the keys are split off one after the other by the host, outside of the compiled step: each is a call of its own
with a few kernels for eight bytes, hundreds of them in each step.
Line: jax_keys_split_image_by_image.py:keys_one_by_one
Remedy: the step gets one key and splits it for all images, inside of what is compiled.
Trap: random numbers are said to be slow in JAX; those of the step itself, thousands for each image, take nothing.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


def main():
    loop = blind.Loop("jax_keys_split_image_by_image", "launch")
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")

    images, side, width, layers = loop.size(128, 3), loop.size(64, 8), loop.size(4096, 16), loop.size(4, 1)
    patch = loop.size(8, 4)
    keys = jax.random.split(jax.random.key(0), 5 + layers)
    if loop.variant == "healthy":
        rows, wide = loop.size(16384, 16), loop.size(8192, 16)
        weights = [jax.random.normal(key, (wide, wide), jnp.bfloat16) / wide**0.5 for key in keys[:4]]
        x = jax.random.normal(keys[4], (rows, wide), jnp.bfloat16)
        forward = jax.jit(lambda x, weights: [x := jnp.dot(x, weight) for weight in weights][-1])

        def step(i):
            nonlocal x
            x = forward(x, weights)

        return loop.run(step, lambda: jax.block_until_ready(x))

    batches = list(jax.random.uniform(keys[0], (4, images, side, side, 3)))
    sides = [3 * patch**2] + [width] * layers
    weights = [jax.random.normal(key, (a, b), jnp.bfloat16) / a**0.5 for key, a, b in zip(keys[5:], sides, sides[1:])]

    def keys_one_by_one(key):
        """A key for each image, and one for the next step."""
        drawn = []
        for _ in range(images):
            key, own = jax.random.split(key)
            drawn.append(own)
        return key, jnp.stack(drawn)

    def changed(image, key):
        """The image moved, brightened, and with some noise."""
        where, light, grain = jax.random.split(key, 3)
        image = jnp.roll(image, jax.random.randint(where, (2,), -4, 5), axis=(0, 1))
        image = image * jax.random.uniform(light, minval=0.8, maxval=1.2)
        return image + 0.02 * jax.random.normal(grain, image.shape)

    def loss_of(weights, pictures):
        count = side // patch
        x = pictures.reshape(images, count, patch, count, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(images * count**2, -1).astype(jnp.bfloat16)
        for weight in weights:
            x = jnp.maximum(x @ weight, 0)
        return jnp.square(x.astype(jnp.float32)).mean()

    @jax.jit
    def train(weights, batch, own_keys):
        slopes = jax.grad(loss_of)(weights, jax.vmap(changed)(batch, own_keys))
        return [weight - (1e-3 * slope).astype(weight.dtype) for weight, slope in zip(weights, slopes)]

    @jax.jit
    def train_with_one_key(weights, batch, key):
        key, own = jax.random.split(key)
        return train(weights, batch, jax.random.split(own, images)), key

    key = keys[1]

    def step(i):
        nonlocal weights, key
        if loop.planted:
            key, own_keys = keys_one_by_one(key)
            weights = train(weights, batches[i % len(batches)], own_keys)
        else:
            weights, key = train_with_one_key(weights, batches[i % len(batches)], key)

    loop.run(step, lambda: jax.block_until_ready(weights))


if __name__ == "__main__":
    main()
