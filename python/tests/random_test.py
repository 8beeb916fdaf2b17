# SPDX-License-Identifier: Apache-2.0
"""Random arguments, most of them wrong: an answer or an exception of a known kind, in a process that survives."""
import random
import subprocess
import sys

import numpy as np
import pytest

import saturate

REFUSALS = (TypeError, ValueError, NotImplementedError, BufferError)
SIZES = [0, 1, 1, 2, 3, 4, 5, 8, 17]


def array(rng, shape, tame=False):
    """Odd strides, negative ones, shared rows, many types; tame: float32 in order."""
    if tame:
        return np.ones(shape, np.float32)
    dtype = rng.choice([np.float32] * 8 + [np.float64, np.float16, np.int32, np.int64, np.bool_])
    kind = rng.random()
    if kind < 0.5:
        x = np.ones(shape, dtype)
    elif kind < 0.8:
        x = np.ones([2 * s + 1 for s in shape], dtype)[tuple(slice(0, 2 * s, 2) for s in shape)]
    elif kind < 0.9:
        x = np.ones(shape, dtype)[tuple(slice(None, None, -1) for _ in shape)]
    else:
        x = np.broadcast_to(np.ones([1] * len(shape), dtype), shape)
    return x.T if rng.random() < 0.1 else x


def attention_arguments(rng):
    B, T, S, H, G, D, E = (rng.choice(SIZES) for _ in range(7))
    if rng.random() < 0.7:
        G, E = rng.choice([1, H]), D
    dense, tame = rng.random() < 0.6, rng.random() < 0.6
    shapes = [(B, T, H, D), (B, S, G, D), (B, S, G, E)]
    arguments = dict(zip("qkv", (array(rng, s if dense else s[1:], tame) for s in shapes)))
    choices = dict(
        causal=[True, False, None], window=[(1, 2), (-1, 0), (2**70, 1), 3, ("a", 1)],
        scale=[1.0, 0, -1, float("inf"), "x", 2**2000, 1e-40], softcap=[1.0, -1, float("inf"), None],
        rotary_base=[10.0, 0, -1, float("nan")], alignment=["bottom_right", "x"], return_lse=[True],
        dropout=[0.0, 0.5, 1.0, -1], stream=[None, 0], max_seqlen_q=[T, 0, -1, 2**40, 2**64, 1.5],
        bias=[array(rng, (1, H, T, S)), array(rng, (B, 1, 1, S)), array(rng, (S,))],
        sinks=[array(rng, (H,)), array(rng, (H + 1,))], alibi_slopes=[array(rng, (H,)), array(rng, (H, 1))],
    )
    for name, values in choices.items():
        if rng.random() < (0.03 if tame else 0.15):
            arguments[name] = rng.choice(values)
    if not dense or rng.random() < 0.05:
        n = rng.randint(0, 4)
        arguments["cu_seqlens_q"] = np.sort(np.array([rng.randint(-1, T + 1) for _ in range(n)], np.int32))
        if rng.random() < 0.7:
            arguments["cu_seqlens_k"] = np.sort(np.array([rng.randint(0, S) for _ in range(n)], np.int32))
    return arguments


def calls(seed, count, convert):
    """How many calls gave an answer."""
    rng, answers = random.Random(seed), 0
    for _ in range(count):
        arguments = {n: convert(x) if isinstance(x, np.ndarray) else x for n, x in attention_arguments(rng).items()}
        m, k, n = (rng.choice(SIZES) for _ in range(3))
        shapes = ((m, k), (k if rng.random() < 0.8 else n, n))
        products = {name: convert(array(rng, shape, rng.random() < 0.5)) for name, shape in zip("ab", shapes)}
        for function, given in ((saturate.attention, arguments), (saturate.matmul, products)):
            try:
                function(**given)
                answers += 1
            except REFUSALS:
                pass
    return answers


def torch_tensor(x):
    import torch

    try:
        return torch.from_numpy(x)
    except (TypeError, ValueError):  # negative strides
        return torch.from_numpy(x.copy())


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.filterwarnings("ignore")
def test_nothing_crashes(kind):
    if kind == "torch":
        pytest.importorskip("torch")
    code = f"import random_test as t; n = t.calls(11, 1500, {'t.torch_tensor' if kind == 'torch' else 'lambda x: x'}); print(n)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=__file__.rsplit("/", 1)[0],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100, "nearly everything was refused, so the test shows nothing"
