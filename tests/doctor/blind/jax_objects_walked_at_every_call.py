# SPDX-License-Identifier: Apache-2.0
"""https://github.com/google/flax/issues/4459 (also google/flax#4045, google/flax#4336)

The same network trains much slower since it is written with the new module objects than with the old functional ones,
although what is compiled is the same.

Cause: at each call the wrapper of the jitted function walks through all modules, variables and their metadata in
Python, once to flatten them and once to write the results back, while the device has nothing to do.
Line: jax_objects_walked_at_every_call.py:split and write_back (in it)
Remedy: the objects are split into a description and arrays once, before the loop; only the arrays are passed around.
"""
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs start beside this one

import blind


class Variable:
    """An array with what is to be known of it: its kind, the names of its axes and so on."""

    def __init__(self, value, kind, **metadata):
        self.value, self.kind, self.metadata = value, kind, metadata


class Module:
    """Its attributes are modules, lists of them, variables, and plain values, which belong to the description."""


class Linear(Module):
    def __init__(self, weight, bias, momentum):
        self.inputs, self.outputs = weight.shape
        self.dtype, self.use_bias, self.precision = str(weight.dtype), True, "default"
        self.weight = Variable(weight, "parameter", axes=("inputs", "outputs"), start="normal", trained=True)
        self.bias = Variable(bias, "parameter", axes=("outputs",), start="zeros", trained=True)
        self.weight_momentum = Variable(momentum, "optimizer", axes=("inputs", "outputs"), start="zeros", trained=False)


class Head(Module):
    """What is known of one head of a layer; it has no arrays of its own."""

    def __init__(self, index):
        self.index, self.dropout, self.deterministic, self.broadcast = index, 0.0, True, ()


class Norm(Module):
    def __init__(self, scale):
        self.epsilon, self.features = 1e-6, scale.shape[0]
        self.scale = Variable(scale, "parameter", axes=("features",), start="ones", trained=True)


class Block(Module):
    def __init__(self, norm, linears, heads):
        self.norm, self.linears, self.heads = norm, linears, heads


class Network(Module):
    def __init__(self, blocks):
        self.blocks = blocks


def split(node, seen, state, path=()):
    """The description of all below `node`, which can be hashed; the arrays go to `state` by their paths."""
    if id(node) in seen:  # shared, as tied weights are
        return ("shared", seen[id(node)])
    seen[id(node)] = len(seen)
    if isinstance(node, Variable):
        state[path] = node.value
        return ("variable", node.kind, tuple(sorted(node.metadata.items())))
    if isinstance(node, list):
        items = enumerate(node)
    else:
        items = sorted(vars(node).items())
    fields = []
    for name, value in items:
        if isinstance(value, (Module, Variable, list)):
            fields.append((name, split(value, seen, state, path + (name,))))
        else:
            fields.append((name, ("static", value)))
    return (type(node).__name__, tuple(fields))


def write_back(node, state, seen, path=()):
    """The values of `state` into the variables below `node`."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, Variable):
        node.value = state[path]
        return
    for name, value in enumerate(node) if isinstance(node, list) else sorted(vars(node).items()):
        if isinstance(value, (Module, Variable, list)):
            write_back(value, state, seen, path + (name,))


def main():
    loop = blind.Loop("jax_objects_walked_at_every_call", "host", steps=300)
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(f"{loop.name}: needs JAX (pip install 'jax[cuda13]')")
    if not loop.small and jax.default_backend() != "gpu":
        raise SystemExit(f"{loop.name}: JAX sees no GPU; these programs measure one")
    healthy = loop.variant == "healthy"
    blocks, per_block, width = loop.size(8 if healthy else 12, 2), 3, loop.size(4096 if healthy else 2048, 16)
    rows = loop.size(8192 if healthy else 3072, 8)
    heads = loop.size(1 if healthy else 80, 2)
    keys = iter(jax.random.split(jax.random.PRNGKey(0), blocks * per_block + 1))
    model = Network([
        Block(Norm(jnp.ones(width, jnp.bfloat16)),
              [Linear(jax.random.normal(next(keys), (width, width), jnp.bfloat16) / width**0.5,
                      jnp.zeros(width, jnp.bfloat16), jnp.zeros((width, width), jnp.bfloat16))
               for _ in range(per_block)],
              [Head(k) for k in range(heads)])
        for _ in range(blocks)])
    x = jax.random.normal(next(keys), (rows, width), jnp.bfloat16)

    def loss_of(arrays, x):
        for b in range(blocks):
            h = x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)).astype(x.dtype)
            h = h * arrays["blocks", b, "norm", "scale"]
            for k in range(per_block):
                h = h @ arrays["blocks", b, "linears", k, "weight"] + arrays["blocks", b, "linears", k, "bias"]
            x = x + jax.nn.relu(h)
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    def updated(description, state, x):
        """One step of training. The description says only how the arrays belong together."""
        trained = {path: a for path, a in state.items() if path[-1] in ("weight", "bias", "scale")}
        slope = jax.grad(loss_of)(trained, x)
        new = dict(state)
        for path, g in slope.items():
            if path[-1] == "weight":
                moment = path[:-1] + ("weight_momentum",)
                g = new[moment] = (0.9 * state[moment] + g).astype(g.dtype)
            new[path] = state[path] - (1e-2 * g).astype(g.dtype)
        return new

    # Dictionaries of a pytree need keys that sort among each other, which paths of names and numbers do not.
    state = {}
    description = split(model, {}, state)
    paths = list(state)

    @jax.jit
    def compiled(arrays, x):
        return list(updated(description, dict(zip(paths, arrays)), x).values())

    compiled_for = {description: compiled}

    def call_with_objects(x):
        found = {}
        function = compiled_for[split(model, {}, found)]  # another model would be compiled for itself
        write_back(model, dict(zip(found, function(list(found.values()), x))), set())

    arrays = list(state.values())
    for _ in range(2):
        arrays = jax.block_until_ready(compiled(arrays, x))
    blind.take_gpu()
    begin = time.perf_counter()
    for _ in range(10):
        arrays = compiled(arrays, x)
    jax.block_until_ready(arrays)
    pure_ms = 1e3 * (time.perf_counter() - begin) / 10
    if not loop.planted:
        model = None

    def step(i):
        nonlocal arrays
        if not loop.planted:
            arrays = compiled(arrays, x)
            return
        begin = time.perf_counter()
        call_with_objects(x)  # beside this the device computes the step before; what takes longer holds up the next
        loop.planted_ms.append(max(0.0, 1e3 * (time.perf_counter() - begin) - pure_ms))

    def wait():
        jax.block_until_ready(arrays if model is None else model.blocks[-1].linears[-1].weight.value)

    loop.run(step, wait)


if __name__ == "__main__":
    main()
