# SPDX-License-Identifier: Apache-2.0
"""saturate.matmul on PyTorch tensors."""
import pytest

torch = pytest.importorskip("torch")

import saturate  # noqa: E402

DTYPES = {"cpu": [torch.float32, torch.float64], "cuda": [torch.float32, torch.bfloat16, torch.float16]}


def bound(dtype, k, scale=1.0):
    """Rounding of the result and of sums in float32 (float64)."""
    unit = torch.finfo(dtype).eps
    sums = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    return scale * (8 * unit + 8 * sums * max(k, 1) ** 0.5) * max(k, 1) ** 0.5


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shapes", [
    ((5, 7), (7, 3)), ((1, 1), (1, 1)), ((64, 128), (128, 96)), ((2, 3, 5, 7), (7, 4)), ((2, 3, 5, 7), (2, 3, 7, 4)),
    ((513, 257), (257, 130)), ((4, 0), (0, 3)), ((0, 4), (4, 3)), ((3, 4), (4, 0)), ((0, 2, 3), (0, 3, 4)),
], ids=str)
def test_equals_torch(shapes, bias, device):
    for dtype in DTYPES[device]:
        torch.manual_seed(3)
        inputs = [torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in shapes]
        if bias:
            inputs.append(torch.randn(shapes[1][-1], dtype=dtype, device=device, requires_grad=True))
        d = saturate.matmul(inputs[0], inputs[1], bias=inputs[2] if bias else None)
        copies = [x.detach().double().requires_grad_() for x in inputs]
        expected = copies[0] @ copies[1] + (copies[2] if bias else 0)
        assert d.dtype == dtype and d.shape == expected.shape
        k = shapes[0][-1]
        torch.testing.assert_close(d.double(), expected, rtol=0, atol=bound(dtype, k, 4))
        d_d = torch.randn_like(d)
        rows = max(1, d.numel() // max(1, d.shape[-1]))
        got = torch.autograd.grad(d, inputs, d_d)
        want = torch.autograd.grad(expected, copies, d_d.double())
        for a, b in zip(got, want):
            torch.testing.assert_close(a.double(), b, rtol=0, atol=bound(dtype, max(k, rows, shapes[1][-1]), 6))


def test_transposed_and_odd_strides(device):
    dtype = DTYPES[device][0]
    a, b = torch.randn(24, 17, dtype=dtype, device=device), torch.randn(40, 24, dtype=dtype, device=device)
    expected = (a.double().T @ b.double().T)
    torch.testing.assert_close(saturate.matmul(a.T, b.T).double(), expected, rtol=0, atol=bound(dtype, 24, 4))
    wide = torch.randn(24, 2, 34, dtype=dtype, device=device)
    torch.testing.assert_close(
        saturate.matmul(wide[:, 1, ::2].T, b.T).double(), wide[:, 1, ::2].double().T @ b.double().T, rtol=0,
        atol=bound(dtype, 24, 4),
    )
    shared = a.expand(3, 24, 17)
    torch.testing.assert_close(saturate.matmul(shared.mT, b.T.expand(3, 24, 40)).double(), expected.expand(3, 17, 40),
                               rtol=0, atol=bound(dtype, 24, 4))


def test_second_derivatives():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    b = torch.randn(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *t: saturate.matmul(t[0], t[1], bias=t[2]), (x, w, b))
    assert torch.autograd.gradgradcheck(lambda *t: saturate.matmul(t[0], t[1], bias=t[2]), (x, w, b))


def test_operator_contract():
    from saturate._torch.matmul import operator

    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    torch.library.opcheck(operator, (a, b, torch.randn(2, requires_grad=True), False))
    torch.library.opcheck(operator, (a.detach().expand(5, 3, 4), b.detach().expand(5, 4, 2), None, False))
