# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays and anything else that speaks DLPack. Needs no PyTorch."""
import subprocess
import sys

import numpy as np
import pytest

import saturate


def formula(q, k, v, causal=False, bias=None):
    """One batch: (B, T, H, D) in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    groups = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, groups, 2), np.repeat(v, groups, 2)
    s = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    if bias is not None:
        s = s + bias
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return np.einsum("bhts,bshd->bthd", p / total, v), (np.log(total) + top)[..., 0]


def arrays(dtype, *shapes):
    random = np.random.default_rng(4)
    return [random.standard_normal(s).astype(dtype) for s in shapes]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_attention(dtype):
    q, k, v, bias = arrays(dtype, (2, 9, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16), (1, 4, 9, 9))
    o, lse = saturate.attention(q, k, v, causal=True, bias=bias, return_lse=True)
    expected, expected_lse = formula(q, k, v, causal=True, bias=bias)
    assert isinstance(o, np.ndarray) and o.dtype == dtype and o.shape == q.shape and lse.shape == (2, 4, 9)
    np.testing.assert_allclose(o, expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=2e-6)


def test_packed_attention():
    q, k, v = arrays(np.float32, (12, 4, 16), (12, 4, 16), (12, 4, 16))
    offsets = np.array([0, 5, 5, 11], np.int32)
    o = saturate.attention(q, k, v, cu_seqlens_q=offsets)
    for begin, end in ((0, 5), (5, 11)):
        expected, _ = formula(*(x[None, begin:end] for x in (q, k, v)))
        np.testing.assert_allclose(o[begin:end], expected[0], rtol=0, atol=2e-6)
    assert (o[11] == 0).all()


def test_read_only_views_and_results_that_live_on():
    qkv, = arrays(np.float32, (2, 6, 3, 4, 16))
    qkv.flags.writeable = False
    q, k, v = (qkv[:, :, i] for i in range(3))
    expected, _ = formula(q, k, v)
    results = [saturate.attention(q, k, v) for _ in range(50)]
    for o in results:
        np.testing.assert_allclose(o, expected, rtol=0, atol=2e-6)
    results[0][:] = 1.0  # memory of its own, and writeable


@pytest.mark.parametrize("shapes", [((5, 7), (7, 3)), ((2, 3, 5, 7), (7, 4)), ((6, 5, 7), (6, 7, 4)), ((0, 4), (4, 3)),
                                    ((4, 0), (0, 3))], ids=str)
def test_matmul(shapes):
    for dtype in (np.float32, np.float64):
        a, b, bias = arrays(dtype, *shapes, shapes[1][-1:])
        d = saturate.matmul(a, b, bias=bias)
        expected = a.astype(np.float64) @ b.astype(np.float64) + bias
        assert d.dtype == dtype and d.shape == expected.shape
        np.testing.assert_allclose(d, expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(saturate.matmul(a, np.asfortranarray(b) if b.ndim == 2 else b), saturate.matmul(a, b))


def test_build_info():
    info = saturate.build_info()
    assert info["version"] == saturate.__version__
    assert info["gpus"] >= 0 and isinstance(info["cuda"], bool)


def test_import_loads_neither_torch_nor_kernels():
    code = "import sys, saturate; assert 'torch' not in sys.modules and 'saturate._core' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class NotAnArray:
    pass


class BrokenArray:
    def __dlpack__(self, **_):
        raise BufferError("not today")

    def __dlpack_device__(self):
        return (1, 0)


X = np.zeros((2, 5, 4, 16), np.float32)
ROWS = X.reshape(10, 4, 16)
OFFSETS = np.array([0, 5, 10], np.int32)
WRONG = {
    "list": (TypeError, "q is of type list", dict(q=[1.0])),
    "none": (TypeError, "v is of type NoneType", dict(v=None)),
    "object": (TypeError, "k is of type NotAnArray", dict(k=NotAnArray())),
    "broken": ((TypeError, BufferError, ValueError), "k", dict(k=BrokenArray())),
    "integers": (TypeError, "i32", dict(q=X.astype(np.int32))),
    "long_integers": (TypeError, "dtype", dict(q=X.astype(np.int64))),
    "strings": ((TypeError, BufferError), "q", dict(q=np.array(["a"]))),
    "two_types": (TypeError, "k is f64; it must be f32", dict(k=X.astype(np.float64))),
    "two_dimensions": (ValueError, "q has shape", dict(q=X[0, 0])),
    "scalar": (ValueError, "q has shape", dict(q=np.array(1.0, np.float32))),
    "batch": (ValueError, "first dimensions", dict(q=X[:1])),
    "k_and_v": (ValueError, "k and v must agree", dict(v=X[:, :4])),
    "head_size": (ValueError, "last dimension", dict(q=X[..., :8].copy())),
    "heads": (ValueError, r"heads of k \(3\)", dict(k=X[:, :, :3].copy(), v=X[:, :, :3].copy())),
    "no_heads": (ValueError, "must not be 0", dict(q=X[:, :, :0].copy())),
    "last_stride": (ValueError, "last dimension must be contiguous", dict(q=np.zeros((2, 5, 4, 32), np.float32)[..., ::2])),
    "batch_stride": (ValueError, "make it contiguous", dict(q=np.zeros((2, 9, 4, 16), np.float32)[:, :5])),
    "no_offsets": (ValueError, "cu_seqlens_q must", dict(q=ROWS, k=ROWS, v=ROWS)),
    "offsets_of_dense": (ValueError, "cu_seqlens_q is given", dict(cu_seqlens_q=OFFSETS)),
    "offsets_type": (TypeError, "cu_seqlens_q", dict(q=ROWS, k=ROWS, v=ROWS, cu_seqlens_q=OFFSETS.astype(np.int64))),
    "offsets_shape": (ValueError, "cu_seqlens_q", dict(q=ROWS, k=ROWS, v=ROWS, cu_seqlens_q=OFFSETS[None])),
    "offsets_beyond": (ValueError, "cu_seqlens_q", dict(q=ROWS, k=ROWS, v=ROWS, cu_seqlens_q=OFFSETS + 5)),
    "offsets_back": (ValueError, "sequence 0", dict(q=ROWS, k=ROWS, v=ROWS, cu_seqlens_q=OFFSETS[[1, 0, 2]])),
    "offsets_count": (ValueError, "2 sequences", dict(q=ROWS, k=ROWS, v=ROWS, cu_seqlens_q=OFFSETS,
                                                      cu_seqlens_k=OFFSETS[[0, 2]])),
    "longest": (ValueError, "sequence 0", dict(q=ROWS, k=ROWS, v=ROWS, cu_seqlens_q=OFFSETS, max_seqlen_q=4)),
    "bias_shape": (ValueError, "bias has shape", dict(bias=np.zeros((1, 3, 5, 5), np.float32))),
    "bias_keys": (ValueError, "bias has shape", dict(bias=np.zeros((1, 4, 5, 6), np.float32))),
    "bias_type": (TypeError, "bias", dict(bias=np.zeros((1, 4, 5, 5), np.float64))),
    "slopes": (ValueError, "alibi_slopes has shape", dict(alibi_slopes=np.zeros(3, np.float32))),
    "scale": (ValueError, "scale", dict(scale=0.0)),
    "scale_type": (TypeError, "scale", dict(scale="half")),
    "scale_nan": (ValueError, "scale", dict(scale=float("nan"))),
    "window": (ValueError, "window", dict(window=3)),
    "window_negative": (ValueError, "window", dict(window=(-2, 0))),
    "alignment": (ValueError, "alignment", dict(alignment="middle")),
    "softcap": (ValueError, "soft_cap", dict(softcap=-1.0)),
    "dropout": (NotImplementedError, "dropout", dict(dropout=0.1)),
    "rotary": (ValueError, "rotary_base", dict(rotary_base=-5.0)),
}


@pytest.mark.parametrize("case", WRONG)
def test_attention_says_what_is_wrong(case):
    error, message, arguments = WRONG[case]
    with pytest.raises(error, match=message):
        saturate.attention(**{**dict(q=X, k=X, v=X), **arguments})


WRONG_PRODUCTS = {
    "list": (TypeError, "a is of type list", dict(a=[[1.0]])),
    "vector": (ValueError, "at least 2 dimensions", dict(a=np.zeros(3, np.float32))),
    "inner": (ValueError, r"a's columns \(4\)", dict(a=np.zeros((2, 4), np.float32))),
    "batch": (ValueError, "leading dimensions", dict(a=np.zeros((2, 3, 3), np.float32), b=np.zeros((3, 3, 5), np.float32))),
    "types": (TypeError, "b is f64", dict(b=np.zeros((3, 5)))),
    "half": (NotImplementedError, "matmul", dict(a=np.zeros((2, 3), np.float16), b=np.zeros((3, 5), np.float16))),
    "bias": (ValueError, "bias has shape", dict(bias=np.zeros(4, np.float32))),
    "strides": (ValueError, "contiguous", dict(a=np.zeros((4, 6), np.float32)[::2, ::2])),
}


@pytest.mark.parametrize("case", WRONG_PRODUCTS)
def test_matmul_says_what_is_wrong(case):
    error, message, arguments = WRONG_PRODUCTS[case]
    with pytest.raises(error, match=message):
        saturate.matmul(**{**dict(a=np.zeros((2, 3), np.float32), b=np.zeros((3, 5), np.float32)), **arguments})
