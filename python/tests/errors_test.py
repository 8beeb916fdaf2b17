# SPDX-License-Identifier: Apache-2.0
"""Wrong PyTorch arguments: an exception that says what was given and what is needed, never a crash."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import saturate  # noqa: E402


def x(*shape, **options):
    return torch.zeros(shape or (2, 5, 4, 16), **options)


ROWS = x(10, 4, 16)
OFFSETS = torch.tensor([0, 5, 10], dtype=torch.int32)
PACKED = dict(q=ROWS, k=ROWS, v=ROWS, cu_seqlens_q=OFFSETS)
WRONG = {
    "numpy_beside_torch": (TypeError, "k, v are not", dict(k=np.zeros((2, 5, 4, 16)), v=np.zeros((2, 5, 4, 16)))),
    "string": (TypeError, "q is of type str", dict(q="q")),
    "meta": (ValueError, "lies on meta", dict(q=x(device="meta"), k=x(device="meta"), v=x(device="meta"))),
    "devices": (ValueError, "k on meta|k lies on meta", dict(k=x(device="meta"))),
    "integers": (TypeError, "q is int64", dict(q=x(dtype=torch.int64))),
    "complex": (TypeError, "q is complex64", dict(q=x(dtype=torch.complex64))),
    "two_types": (TypeError, "q is float32, v float64", dict(v=x(dtype=torch.float64))),
    "sparse": (TypeError, "to_dense", dict(q=x().to_sparse())),
    "scalar": (ValueError, "q has shape", dict(q=torch.tensor(1.0))),
    "five_dimensions": (ValueError, "q has shape", dict(q=x(1, 2, 5, 4, 16), k=x(1, 2, 5, 4, 16), v=x(1, 2, 5, 4, 16))),
    "batch": (ValueError, "first dimensions", dict(q=x(1, 5, 4, 16))),
    "heads": (ValueError, "must divide", dict(k=x(2, 5, 3, 16), v=x(2, 5, 3, 16))),
    "last_stride": (ValueError, r"call q\.contiguous\(\)", dict(q=x(2, 5, 16, 4).mT)),
    "half_on_cpu": (NotImplementedError, "dtype is neither f32 nor f64", {n: x(dtype=torch.float16) for n in "qkv"}),
    "no_offsets": (ValueError, "cu_seqlens_q must", dict(q=ROWS, k=ROWS, v=ROWS)),
    "offsets_type": (TypeError, "cu_seqlens_q is int64", {**PACKED, "cu_seqlens_q": OFFSETS.long()}),
    "offsets_beyond": (ValueError, "must lie within 0", {**PACKED, "cu_seqlens_q": OFFSETS + 1}),
    "offsets_negative": (ValueError, "must lie within 0", {**PACKED, "cu_seqlens_q": OFFSETS - 1}),
    "offsets_empty": (ValueError, "cu_seqlens_q has shape", {**PACKED, "cu_seqlens_q": OFFSETS[:0]}),
    "offsets_missing": (ValueError, "cu_seqlens_k must be given", {**PACKED, "k": ROWS[:5], "v": ROWS[:5]}),
    "longest": (ValueError, "sequence 0", {**PACKED, "max_seqlen_q": 4}),
    "longest_type": (TypeError, "max_seqlen_q is 2.5", {**PACKED, "max_seqlen_q": 2.5}),
    "longest_of_dense": (ValueError, "max_seqlen_q is given", dict(max_seqlen_q=5)),
    "bias_dimensions": (ValueError, "bias has shape", dict(bias=x(5, 5))),
    "bias_type": (TypeError, "bias is float64", dict(bias=x(1, 4, 5, 5, dtype=torch.float64))),
    "sinks": (ValueError, "sinks has shape", dict(sinks=x(5))),
    "slopes_type": (TypeError, "alibi_slopes is float16", dict(alibi_slopes=x(4, dtype=torch.float16))),
    "block_mask_alone": (ValueError, "together", dict(block_mask=x(1, 1, 1, 1, dtype=torch.bool))),
    "block_size": (ValueError, "block_mask has shape", dict(block_mask=x(1, 1, 9, 1, dtype=torch.bool), block_size=4)),
    "block_size_zero": (ValueError, "block_size is 0", dict(block_mask=x(1, 1, 1, 1, dtype=torch.bool), block_size=0)),
    "block_size_type": (TypeError, "block_size is 1.5", dict(block_mask=x(1, 1, 1, 1, dtype=torch.bool), block_size=1.5)),
    "huge_scale": (ValueError, "scale is too large", dict(scale=2**2000)),
    "huge_window": (ValueError, r"window\[0\] is", dict(window=(2**70, 1))),
    "block_mask_type": (TypeError, "block_mask is float32", dict(block_mask=x(1, 1, 1, 1), block_size=8)),
    "dropout": (ValueError, r"dropout is 1\.0", dict(dropout=1.0)),
    "dropout_type": (TypeError, "dropout is of type str", dict(dropout="0.1")),
    "random_state": (ValueError, "rng_state has shape", dict(dropout=0.5, rng_state=torch.zeros(3, dtype=torch.int64))),
    "scale": (ValueError, "scale is -1", dict(scale=-1.0)),
    "window": (ValueError, "window is", dict(window=(1, 2, 3))),
    "alignment": (ValueError, "alignment is", dict(alignment="left")),
    "rotary_odd": (ValueError, "rotary_base", dict(rotary_base=10.0, **{n: x(2, 5, 4, 15) for n in "qkv"})),
    "stream": (ValueError, "torch.cuda.stream", dict(stream=0)),
}


@pytest.mark.parametrize("case", WRONG)
def test_attention_says_what_is_wrong(case):
    error, message, arguments = WRONG[case]
    with pytest.raises(error, match=message):
        saturate.attention(**{**dict(q=x(), k=x(), v=x()), **arguments})


WRONG_PRODUCTS = {
    "numpy_beside_torch": (TypeError, "b are not", dict(b=np.zeros((3, 5), np.float32))),
    "devices": (ValueError, "meta", dict(b=x(3, 5, device="meta"))),
    "integers": (TypeError, "a is int32", dict(a=x(2, 3, dtype=torch.int32))),
    "two_types": (TypeError, "a is float32, b float64", dict(b=x(3, 5, dtype=torch.float64))),
    "inner": (ValueError, r"a's columns \(4\) must be b's rows \(3\)", dict(a=x(2, 4))),
    "vector": (ValueError, "at least 2", dict(b=x(3))),
    "batch": (ValueError, "expand it", dict(b=x(2, 3, 5))),
    "bias": (ValueError, r"bias has shape \(3,\); it must be \(5,\)", dict(bias=x(3))),
    "half_on_cpu": (NotImplementedError, "matmul", dict(a=x(2, 3, dtype=torch.bfloat16), b=x(3, 5, dtype=torch.bfloat16))),
}


@pytest.mark.parametrize("case", WRONG_PRODUCTS)
def test_matmul_says_what_is_wrong(case):
    error, message, arguments = WRONG_PRODUCTS[case]
    with pytest.raises(error, match=message):
        saturate.matmul(**{**dict(a=x(2, 3), b=x(3, 5)), **arguments})


def test_core_refuses_what_the_package_never_sends():
    """The extension module itself checks too: a mistake of the Python files must not become a crash."""
    core = __import__("saturate._build", fromlist=["core"]).core()
    t = core.Tensor.empty((4, 2, 8), "f32")
    lse, options = core.Tensor.empty((2, 4), "f32"), core.AttentionOptions(sequences=3, max_q=4, max_k=4, scale=1.0)
    with pytest.raises(ValueError, match="4 rows are not 3 sequences"):
        core.attention_forward(t, t, t, t, lse, options, 0)
    with pytest.raises(ValueError, match="lse has shape"):
        core.attention_forward(t, t, t, t, t, options, 0)
    with pytest.raises(TypeError):
        core.attention_forward(t, t, None, t, lse, options, 0)
    with pytest.raises(TypeError):
        core.AttentionOptions(sequences="three", max_q=4, max_k=4, scale=1.0)
    with pytest.raises(TypeError, match="dtype is f8"):
        core.Tensor.empty((2,), "f8")
    with pytest.raises(ValueError, match="2 sizes but 1 strides"):
        core.Tensor.view(0, (2, 2), (1,), "f32")
    with pytest.raises(ValueError, match="not ours"):
        core.Tensor.view(0, (2,), (1,), "f32").array()
