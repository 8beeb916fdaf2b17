# SPDX-License-Identifier: Apache-2.0
"""saturate.conv2d on PyTorch tensors and on NumPy's arrays."""
import pytest

import saturate

np = pytest.importorskip("numpy")
try:
    import torch
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="no PyTorch")

CASES = [  # x, weight, stride, padding, dilation
    ((2, 3, 9, 11), (4, 3, 3, 3), 1, 1, 1),
    ((1, 8, 16, 12), (16, 8, 5, 3), (2, 1), (2, 0), (1, 2)),
    ((3, 1, 7, 7), (2, 1, 1, 1), 1, 0, 1),
    ((2, 16, 14, 14), (24, 16, 2, 4), (3, 2), (0, 3), 2),
]


def direct(x, w, bias, stride, padding, dilation):
    """The definition, in float64."""
    (sv, sh), (pv, ph), (dv, dh) = ((v, v) if isinstance(v, int) else v for v in (stride, padding, dilation))
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pv, pv), (ph, ph)))
    rows = (x.shape[2] - dv * (w.shape[2] - 1) - 1) // sv + 1
    columns = (x.shape[3] - dh * (w.shape[3] - 1) - 1) // sh + 1
    y = np.zeros((x.shape[0], w.shape[0], rows, columns))
    for r in range(w.shape[2]):
        for s in range(w.shape[3]):
            part = x[:, :, r * dv:r * dv + (rows - 1) * sv + 1:sv, s * dh:s * dh + (columns - 1) * sh + 1:sh]
            y += np.einsum("bchw,fc->bfhw", part, w[:, :, r, s].astype(np.float64))
    return y + bias.reshape(1, -1, 1, 1)


def last(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("x_shape,w_shape,stride,padding,dilation", CASES, ids=str)
def test_arrays(x_shape, w_shape, stride, padding, dilation):
    random = np.random.default_rng(4)
    x, w, bias = (random.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape, w_shape[:1]))
    y = saturate.conv2d(last(x), last(w), bias=bias, stride=stride, padding=padding, dilation=dilation)
    expected = direct(x, w, bias, stride, padding, dilation)
    assert y.shape == expected.shape and y.dtype == np.float32
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_arrays_that_do_not_fit():
    x, w = np.ones((1, 2, 4, 4), np.float32), np.ones((3, 2, 3, 3), np.float32)
    with pytest.raises(ValueError, match="channels must come last"):
        saturate.conv2d(x, w)
    with pytest.raises(ValueError, match="channels .2 and 5. must be equal"):
        saturate.conv2d(last(x), last(np.ones((3, 5, 3, 3), np.float32)))
    with pytest.raises(ValueError, match=r"height: a filter that reaches over 5 elements does not fit into 4"):
        saturate.conv2d(last(x), last(w), dilation=2)
    with pytest.raises(ValueError, match=r"stride\[0\] is 0"):
        saturate.conv2d(last(x), last(w), stride=0)
    with pytest.raises(ValueError, match="bias has shape"):
        saturate.conv2d(last(x), last(w), bias=np.ones(2, np.float32))


@needs_torch
@pytest.mark.parametrize("x_shape,w_shape,stride,padding,dilation", CASES, ids=str)
def test_equals_torch(x_shape, w_shape, stride, padding, dilation, device):
    types = [torch.float32, torch.float64] if device == "cpu" else [torch.float32, torch.bfloat16, torch.float16]
    for dtype in types:
        torch.manual_seed(5)
        inputs = [torch.randn(s, device=device).to(dtype).requires_grad_() for s in (x_shape, w_shape, w_shape[:1])]
        y = saturate.conv2d(inputs[0], inputs[1], bias=inputs[2], stride=stride, padding=padding, dilation=dilation)
        copies = [t.detach().cpu().double().requires_grad_() for t in inputs]
        expected = torch.nn.functional.conv2d(*copies, stride, padding, dilation)
        assert y.dtype == dtype and y.shape == expected.shape
        # Results are rounded once; the sums, in float32, are of this many terms.
        terms = max(w_shape[1] * w_shape[2] * w_shape[3], y.numel() // w_shape[0])
        bound = 8 * (torch.finfo(dtype).eps + 1e-7 * terms ** 0.5) * terms ** 0.5
        torch.testing.assert_close(y.cpu().double(), expected, rtol=0, atol=bound)
        d_y = torch.randn_like(y)
        for got, want in zip(torch.autograd.grad(y, inputs, d_y),
                             torch.autograd.grad(expected, copies, d_y.cpu().double())):
            torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=2 * bound)


@needs_torch
def test_channels_last_is_not_copied_and_an_empty_batch_has_no_weight_gradient(device):
    x = torch.randn(2, 4, 6, 6, device=device).contiguous(memory_format=torch.channels_last)
    w = torch.randn(8, 4, 3, 3, device=device, requires_grad=True)
    assert saturate.conv2d(x, w).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(saturate.conv2d(x, w), saturate.conv2d(x.contiguous(), w), rtol=0, atol=0)
    saturate.conv2d(x[:0], w).sum().backward()
    assert w.grad.abs().sum() == 0


@needs_torch
def test_operator_contract():
    from saturate._torch.conv2d import operator

    x, w = torch.randn(2, 3, 5, 5, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    torch.library.opcheck(operator, (x, w, torch.randn(4, requires_grad=True), [1, 2], [1, 0], [1, 1]))
