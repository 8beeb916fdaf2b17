# SPDX-License-Identifier: Apache-2.0
"""github.com/huggingface/transformers/issues/18289

Fine-tuning a summarisation model with JAX leaves the accelerator idle for much of the time; forming one batch takes
hundreds of milliseconds, more than the step it is for.

Cause: every field of a batch is a list of lists of numbers, turned into a device array on the main thread.
Line: jax_batches_from_python_lists.py:to_device
Remedy: the data set holds int32 arrays; a batch is a slice of them, put on the device one batch ahead.
"""
import time

import numpy as np

import blind

FIELDS = ("input_ids", "attention_mask", "decoder_input_ids", "labels")


def make_examples(rng, count, length, vocabulary):
    """What a tokeniser returns: a dictionary of Python lists for each text."""
    examples = []
    for _ in range(count):
        ids = rng.integers(2, vocabulary, size=length + 1).tolist()
        examples.append(dict(zip(FIELDS, (ids[:-1], [1] * length, [0] + ids[: length - 1], ids[1:]))))
    return examples


def rows_of(i, batch, count):
    return [(i * batch + k) % count for k in range(batch)]


def main():
    loop = blind.Loop("jax_batches_from_python_lists", "input", steps=120)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    batch, length, vocabulary = loop.size(16, 2), loop.size(512, 8), loop.size(8192, 32)
    width, layers = loop.size(2048, 16), loop.size(12 if loop.variant == "healthy" else 8, 1)
    examples = make_examples(np.random.default_rng(0), loop.size(256, 8), length, vocabulary)
    packed = {field: np.array([example[field] for example in examples], np.int32) for field in FIELDS}

    keys = jax.random.split(jax.random.PRNGKey(0), 2 * layers + 1)
    normal = lambda key, *shape: (jax.random.normal(key, shape) / shape[0] ** 0.5).astype(jnp.bfloat16)
    params = {"embed": normal(keys[-1], vocabulary, width), "blocks": [
        (normal(keys[2 * k], width, 4 * width), normal(keys[2 * k + 1], 4 * width, width)) for k in range(layers)]}

    def loss_of(params, fields):
        h = params["embed"][fields["input_ids"]] + params["embed"][fields["decoder_input_ids"]]
        for up, down in params["blocks"]:
            h = h + jax.nn.gelu(h @ up) @ down
            h = h * jax.lax.rsqrt(jnp.mean(jnp.square(h.astype(jnp.float32)), -1, keepdims=True)).astype(h.dtype)
        score = jax.nn.log_softmax((h @ params["embed"].T).astype(jnp.float32))
        picked = jnp.take_along_axis(score, fields["labels"][..., None], axis=-1)[..., 0]
        return -jnp.mean(picked * fields["attention_mask"])

    @jax.jit
    def update(params, fields):
        slope = jax.grad(loss_of)(params, fields)
        return jax.tree_util.tree_map(lambda p, g: p - 1e-3 * g.astype(p.dtype), params, slope)

    def to_device(i):
        rows = rows_of(i, batch, len(examples))
        if loop.planted:
            return {field: jnp.array([examples[row][field] for row in rows]) for field in FIELDS}
        return {field: jax.device_put(values[rows]) for field, values in packed.items()}

    ahead = to_device(0)
    for _ in range(2):
        params = update(params, ahead)
    jax.block_until_ready(params)
    begin = time.perf_counter()
    for _ in range(5):
        jax.block_until_ready(update(params, ahead))
    gpu_ms = 1e3 * (time.perf_counter() - begin) / 5

    def step(i):
        nonlocal params, ahead
        begin = time.perf_counter()
        fields = to_device(i) if loop.planted else ahead
        if loop.planted:  # beside this the GPU finishes the last step; what takes longer holds it up
            loop.planted_ms.append(max(0.0, 1e3 * (time.perf_counter() - begin) - gpu_ms))
        params = update(params, fields)
        if not loop.planted:
            ahead = to_device(i + 1)

    loop.run(step, lambda: jax.block_until_ready(params))


if __name__ == "__main__":
    main()
