# SPDX-License-Identifier: Apache-2.0
"""saturate.attention on PyTorch tensors against the formula in float64."""
import doctest
import importlib
import itertools
import math
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import saturate  # noqa: E402

DTYPES = {"cpu": [torch.float32, torch.float64], "cuda": [torch.float32, torch.bfloat16, torch.float16]}


def formula(q, k, v, *, causal=False, alignment="top_left", window=None, scale=None, softcap=0.0, bias=None,
            alibi_slopes=None, sinks=None, rotary_base=None, block_mask=None, block_size=None):
    """The contract in PyTorch, q (B, T, H, D): output and log-sum-exp in float64."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    groups, (queries, keys, size) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2], q.shape[3])
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    i = torch.arange(queries, device=q.device)[:, None] + (keys - queries if alignment == "bottom_right" else 0)
    j = torch.arange(keys, device=q.device)[None, :]
    if rotary_base is not None:
        q, k = rotated(q, i[:, 0], rotary_base), rotated(k, j[0], rotary_base)
    s = q @ k.mT * (1 / math.sqrt(size) if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.double()
    if alibi_slopes is not None:
        s = s - alibi_slopes.double()[:, None, None] * (i - j).abs()
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if causal:
        seen = seen & (j <= i)
    if window is not None:
        seen = seen & ((window[0] < 0) | (j >= i - window[0])) & ((window[1] < 0) | (j <= i + window[1]))
    if block_mask is not None:
        seen = seen & block_mask.repeat_interleave(block_size, -1).repeat_interleave(block_size, -2)[
            ..., :queries, :keys]
    s = s.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        s = torch.cat((s, sinks.double()[:, None, None].expand(s.shape[0], -1, queries, 1)), -1)
        v = torch.nn.functional.pad(v, (0, 0, 0, 1))
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse.masked_fill(lse.isinf(), 0.0)[..., None])
    return (p @ v).transpose(1, 2), lse


def rotated(x, positions, base):
    half = x.shape[-1] // 2
    angle = positions[:, None].double() * base ** (-torch.arange(half, device=x.device).double() / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def problem(device, dtype, batch=2, queries=21, keys=21, heads=4, kv_heads=2, size=32, value_size=None):
    torch.manual_seed(7)
    shapes = [(batch, queries, heads, size), (batch, keys, kv_heads, size),
              (batch, keys, kv_heads, value_size or size)]
    return [torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in shapes]


def epsilon(dtype):
    # scale and other settings cross in float32, also for float64.
    return 2.0**-23 if dtype == torch.float64 else torch.finfo(dtype).eps


def check(inputs, extra, settings):
    """Output, lse and all gradients; bounds as the sums' length times the unit of the type."""
    dtype = inputs[0].dtype
    o, lse = saturate.attention(*inputs, **extra, **settings, return_lse=True)
    copies = [x.detach().double().requires_grad_() for x in inputs]
    extra_copies = {n: x.detach().double().requires_grad_() if x.is_floating_point() else x for n, x in extra.items()}
    expected, expected_lse = formula(*copies, **extra_copies, **settings)
    assert o.dtype == dtype and lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    unit, lse_bound = epsilon(dtype), 2.0**-18
    if settings.get("rotary_base"):  # angles of up to as many radians as rows, in float32
        unit = max(unit, 2.0**-23 * max(1.0, max(x.shape[1] for x in inputs) / 8))
        lse_bound = max(lse_bound, 2 * unit)  # the GPU rounds rotated rows to the type before it multiplies them
    bound = 8 * unit * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(o.double(), expected, rtol=0, atol=bound)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=2.0**-18, atol=lse_bound)
    torch.manual_seed(8)
    d_o = torch.randn_like(o)
    differentiable = [n for n, x in extra.items() if x.is_floating_point()]
    grads = torch.autograd.grad(o, [*inputs, *(extra[n] for n in differentiable)], d_o)
    truth = torch.autograd.grad(expected, [*copies, *(extra_copies[n] for n in differentiable)], d_o.double())
    batch, queries, keys = o.shape[0], o.shape[1], inputs[1].shape[1]
    # Gradients of one number a head sum over all queries terms of both signs, for slopes times a distance.
    terms = {"alibi_slopes": batch * queries * max(queries, keys), "sinks": batch * queries}
    for name, got, want in zip(["q", "k", "v", *differentiable], grads, truth):
        bound = 24 * unit * max(1.0, want.abs().max().item(), terms.get(name, 0) / 8)
        torch.testing.assert_close(got.double(), want, rtol=0, atol=bound, msg=lambda m: f"d_{name}: {m}")


def per_head(device, dtype, heads=4):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.rand(heads, dtype=wide, device=device, requires_grad=True)


FEATURES = {
    "plain": lambda **_: ({}, {}),
    "causal": lambda **_: ({}, dict(causal=True)),
    "bottom_right": lambda **_: ({}, dict(causal=True, alignment="bottom_right")),
    "window": lambda **_: ({}, dict(window=(5, 3))),
    "softcap": lambda **_: ({}, dict(softcap=2.0, scale=0.5)),
    "bias": lambda device, dtype, t, s: (
        dict(bias=torch.randn(1, 4, t, s, dtype=dtype, device=device, requires_grad=True)), {}),
    "bias_of_batch": lambda device, dtype, t, s: (
        dict(bias=torch.randn(2, 1, 1, s, dtype=dtype, device=device, requires_grad=True)), {}),
    "alibi": lambda device, dtype, **_: (dict(alibi_slopes=per_head(device, dtype)), {}),
    "sinks": lambda device, dtype, **_: (dict(sinks=per_head(device, dtype)), {}),
    "rotary": lambda **_: ({}, dict(rotary_base=100.0)),
    "block_mask": lambda device, dtype, t, s: (
        dict(block_mask=torch.rand(2, 4, -(-t // 4), -(-s // 4), device=device) < 0.7), dict(block_size=4)),
}


def run_or_skip(device, inputs, extra, settings):
    try:
        check(inputs, extra, settings)
    except NotImplementedError as error:
        if device == "cuda":
            pytest.skip(f"no GPU kernel has this yet: {error}")
        raise


@pytest.mark.parametrize("lengths", [(21, 21), (9, 30), (30, 9), (1, 70), (130, 130)], ids=str)
@pytest.mark.parametrize("feature", FEATURES)
def test_equals_formula(feature, lengths, device):
    for dtype in DTYPES[device]:
        inputs = problem(device, dtype, queries=lengths[0], keys=lengths[1])
        extra, settings = FEATURES[feature](device=device, dtype=dtype, t=lengths[0], s=lengths[1])
        run_or_skip(device, inputs, extra, settings)


@pytest.mark.parametrize("size", [8, 40, 64, 96, 128, 256])
def test_head_sizes(size, device):
    for dtype in DTYPES[device]:
        run_or_skip(device, problem(device, dtype, size=size), {}, dict(causal=True))


def test_value_size_of_its_own(device):
    for dtype in DTYPES[device]:
        run_or_skip(device, problem(device, dtype, size=32, value_size=64), {}, {})


@pytest.mark.parametrize("first,second", list(itertools.combinations(
    ["bottom_right", "window", "softcap", "bias", "alibi", "sinks", "rotary", "block_mask"], 2)))
def test_pairs_of_features(first, second, device):
    dtype = DTYPES[device][0]
    a, b = (FEATURES[f](device=device, dtype=dtype, t=13, s=17) for f in (first, second))
    run_or_skip(device, problem(device, dtype, queries=13, keys=17), {**a[0], **b[0]}, {**a[1], **b[1]})


def test_packed_equals_one_by_one(device):
    for dtype in DTYPES[device]:
        lengths_q, lengths_k = [7, 0, 33, 1], [7, 5, 12, 0]
        q, k, v = (x[0] for x in problem(device, dtype, batch=1, queries=43, keys=26))
        starts = [0, *itertools.accumulate(lengths_q)], [0, *itertools.accumulate(lengths_k)]
        cu_q, cu_k = (torch.tensor(x, dtype=torch.int32, device=device) for x in starts)
        o, lse = saturate.attention(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=33,
                                    max_seqlen_k=12, return_lse=True)
        assert o.shape == q.shape and lse.shape == (4, 43)
        assert (o[41:] == 0).all(), "rows after the last sequence"
        for b, (n, m) in enumerate(zip(lengths_q, lengths_k)):
            rows, keys = slice(starts[0][b], starts[0][b] + n), slice(starts[1][b], starts[1][b] + m)
            if m == 0:
                assert (o[rows] == 0).all() and (lse[:, rows] == -math.inf).all()
            elif n:
                expected, _ = formula(q[None, rows], k[None, keys], v[None, keys], causal=True)
                torch.testing.assert_close(o[rows].double(), expected[0], rtol=0, atol=16 * epsilon(dtype))
        o.sum().backward()


def test_views_of_one_projection(device):
    dtype = DTYPES[device][0]
    qkv = torch.randn(2, 18, 3, 4, 32, dtype=dtype, device=device, requires_grad=True)
    q, k, v = qkv.unbind(2)
    assert q.stride(1) == 3 * 4 * 32
    o = saturate.attention(q, k, v, causal=True)
    expected, _ = formula(q, k, v, causal=True)
    torch.testing.assert_close(o.double(), expected, rtol=0, atol=8 * epsilon(dtype) * 4)
    got, = torch.autograd.grad(o.sum(), qkv)
    want, = torch.autograd.grad(expected.sum(), qkv)
    torch.testing.assert_close(got, want, rtol=0, atol=64 * epsilon(dtype))


def test_heads_before_rows_are_copied(device):
    q, k, v = (torch.randn(2, 4, 18, 32, device=device).transpose(1, 2) for _ in range(3))
    torch.testing.assert_close(saturate.attention(q, k, v), saturate.attention(*(x.contiguous() for x in (q, k, v))))


def test_dropout(device):
    q, k = (torch.zeros(2, 64, 4, 32, device=device) for _ in range(2))
    v = torch.ones(2, 64, 4, 32, device=device, requires_grad=True)
    state = torch.tensor([5, 9], device=device)
    o = saturate.attention(q, k, v, dropout=0.25, rng_state=state)
    torch.testing.assert_close(o.mean(), o.new_tensor(1.0), rtol=0, atol=5 * math.sqrt(1 / 3 / 64 / 512))
    assert (o == saturate.attention(q, k, v, dropout=0.25, rng_state=state)).all()
    assert (o != saturate.attention(q, k, v, dropout=0.25, rng_state=state + 1)).any()
    # Weights are all equal, so the gradient of v counts the kept ones of each key: that of the same mask sums to o's.
    d_v, = torch.autograd.grad(o[..., 0].sum(), v)
    torch.testing.assert_close(d_v[..., 0].sum((0, 1)), o[..., 0].sum((0, 1)), rtol=1e-5, atol=1e-5)
    torch.manual_seed(1)
    first = saturate.attention(q, k, v, dropout=0.25)
    torch.manual_seed(1)
    assert (first == saturate.attention(q, k, v, dropout=0.25)).all()
    assert (first != saturate.attention(q, k, v, dropout=0.25)).any()


def test_determinism_follows_pytorch():
    from saturate._torch import attention as module

    inputs = problem("cpu", torch.float32, queries=3, keys=3)
    with mock.patch.object(module, "apply", wraps=module.apply) as called:
        saturate.attention(*inputs)
        saturate.attention(*inputs, deterministic=True)
        torch.use_deterministic_algorithms(True)
        try:
            saturate.attention(*inputs)
            saturate.attention(*inputs, deterministic=False)
        finally:
            torch.use_deterministic_algorithms(False)
    assert [call.args[-1] for call in called.call_args_list] == [False, True, True, False]


def test_checkpointed_dropout():
    """Recomputation draws the same mask: gradients equal those without it."""
    from torch.utils.checkpoint import checkpoint

    inputs = problem("cpu", torch.float32)
    grads = []
    for run in (lambda f: f(*inputs), lambda f: checkpoint(f, *inputs, use_reentrant=False)):
        torch.manual_seed(4)
        grads.append(torch.autograd.grad(run(lambda *x: saturate.attention(*x, dropout=0.4)).square().sum(), inputs))
    for a, b in zip(*grads):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["saturate._attention", "saturate._matmul", "saturate._build"])
def test_examples_of_docstrings(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs=dict(torch=torch, saturate=saturate))
    assert result.attempted > 0 and result.failed == 0


def test_operator_contract():
    from saturate._torch.attention_op import attention as operator

    q, k, v = (x.flatten(0, 1).detach().requires_grad_() for x in problem("cpu", torch.float32, queries=5, keys=5))
    bias = torch.randn(1, 4, 5, 5, requires_grad=True)
    none = [None] * 6
    settings = (0, 2, 5, 5, True, False, -1, -1, 0.3, 0.0, 0.0, 0.0, True)
    torch.library.opcheck(operator, (q, k, v, bias, None, *none[:5], *settings))


def test_gradient_by_differences():
    inputs = problem("cpu", torch.float64, queries=3, keys=4, size=4)
    # float32 settings (scale) are exact here; steps of 1e-6 leave 1e-9 of rounding.
    torch.autograd.gradcheck(lambda *x: saturate.attention(*x, scale=0.5, causal=True, softcap=2.0), inputs)
