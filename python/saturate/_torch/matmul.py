# SPDX-License-Identifier: Apache-2.0
"""saturate.matmul for PyTorch tensors, and its operator saturate::matmul."""
from typing import Optional

import torch
from torch import Tensor

from saturate import _checks
from saturate._build import core
from saturate._torch import views

OP = "matmul"
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _matrix(x):
    """`x` row-major or transposed, with rows that do not overlap; a copy where it is neither."""
    for major, minor in ((-2, -1), (-1, -2)):
        if x.stride(minor) == 1 and x.stride(major) >= max(1, x.shape[minor]):
            return x
    return x.contiguous()


def _product(a, b):
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def run(a, b, bias, allow_tf32):
    d = _product(a, b)
    a, b = _matrix(a), _matrix(b)
    va, vb, vd, vbias = views.view(a), views.view(b), views.view(d), views.view(bias)
    workspace = None
    if a.is_cuda:
        taken = core().matmul_workspace_bytes(va, vb, vd, vbias, allow_tf32=allow_tf32)
        if taken > 0:
            workspace = torch.empty((taken + 3) // 4, dtype=torch.int32, device=a.device)
    core().matmul(va, vb, vd, vbias, views.view(workspace), allow_tf32=allow_tf32, stream=views.stream_of(a))
    return d


@torch.library.custom_op("saturate::matmul", mutates_args=())
def operator(a: Tensor, b: Tensor, bias: Optional[Tensor], allow_tf32: bool) -> Tensor:
    """(m, k) by (k, n), or (batch, m, k) by (batch, k, n); bias (n)."""
    return run(a, b, bias, allow_tf32)


@operator.register_fake
def _(a, b, bias, allow_tf32):
    return _product(a, b)


def _save(ctx, inputs, output):
    a, b, bias, allow_tf32 = inputs
    ctx.save_for_backward(a, b)
    ctx.allow_tf32 = allow_tf32


def _backward(ctx, d):
    a, b = ctx.saved_tensors
    d_a = apply(d, b.mT, None, ctx.allow_tf32) if ctx.needs_input_grad[0] else None
    d_b = apply(a.mT, d, None, ctx.allow_tf32) if ctx.needs_input_grad[1] else None
    d_bias = d.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
    return d_a, d_b, d_bias, None


operator.register_autograd(_backward, setup_context=_save)


class Eager(torch.autograd.Function):
    """The operator's work and gradients, called directly."""

    @staticmethod
    def forward(ctx, *inputs):
        output = run(*inputs)
        _save(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)


def apply(a, b, bias, allow_tf32):
    if not views.is_plain((a, b, bias)):
        return operator(a, b, bias, allow_tf32)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)):
        return Eager.apply(a, b, bias, allow_tf32)
    return run(a, b, bias, allow_tf32)


def matmul(a, b, bias, allow_tf32):
    a, b, bias = views.autocast(a, b, bias)
    named = [("a", a), ("b", b)] + ([] if bias is None else [("bias", bias)])
    for name, t in named:
        views.check(OP, name, t, FLOATS)
    views.same_type(OP, named)
    views.same_device(OP, named)
    _checks.products(OP, a.shape, b.shape, None if bias is None else bias.shape)
    lead = a.shape[:-1]
    if b.dim() == 2:
        d = apply(a.flatten(0, -2), b, _vector(bias), allow_tf32)
    else:
        d = apply(a.flatten(0, -3), b.flatten(0, -3), _vector(bias), allow_tf32)
    return d.reshape(*lead, b.shape[-1])


def _vector(bias):
    return None if bias is None else bias.contiguous()
