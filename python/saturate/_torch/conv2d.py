# SPDX-License-Identifier: Apache-2.0
"""saturate.conv2d for PyTorch tensors, and its operator saturate::conv2d."""
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from saturate import _checks
from saturate._build import core
from saturate._torch import views

OP = "conv2d"
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# The weight gradient is summed in parts, each as large as the filters in float32, of which this is to hold several.
PARTS_BYTES = 32 << 20


def _last(x):
    """(batch, height, width, channels), contiguous; shares memory with a channels_last tensor."""
    return x.permute(0, 2, 3, 1).contiguous()


def _settings(stride, padding, dilation):
    return dict(stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation))


def _result(x, w, stride, padding, dilation):
    shape = _checks.convolution(OP, x.shape, w.shape, None, stride, padding, dilation)
    return x.new_empty((shape[0], shape[2], shape[3], shape[1])).permute(0, 3, 1, 2)


def run_forward(x, w, bias, stride, padding, dilation):
    y = _result(x, w, stride, padding, dilation)
    x, w, rows = _last(x), _last(w), y.permute(0, 2, 3, 1)
    core().conv2d_forward(views.view(x), views.view(w), views.view(bias), views.view(rows),
                          **_settings(stride, padding, dilation), stream=views.stream_of(x))
    return y


def run_backward(d_y, x, w, wanted, stride, padding, dilation):
    """Gradients of x and w where `wanted`, else empty tensors."""
    d_y, x, w = _last(d_y), _last(x), _last(w)
    d_x, d_w = (torch.empty_like(t) if want else t.new_empty((0, 0, 0, 0)) for t, want in zip((x, w), wanted))
    if x.shape[0] == 0:
        d_w.zero_()
    else:
        workspace = None
        if x.is_cuda and wanted[1]:
            part = w.shape[0] * w.shape[1] * w.shape[2] * ((w.shape[3] + 7) // 8 * 8)
            workspace = x.new_empty(max(part, PARTS_BYTES // 4), dtype=torch.int32)
        core().conv2d_backward(views.view(d_y), views.view(x), views.view(w), views.view(d_x) if wanted[0] else None,
                               views.view(d_w) if wanted[1] else None, views.view(workspace),
                               **_settings(stride, padding, dilation), stream=views.stream_of(x))
    return d_x.permute(0, 3, 1, 2), d_w.permute(0, 3, 1, 2)


@torch.library.custom_op("saturate::conv2d", mutates_args=())
def operator(x: Tensor, w: Tensor, bias: Optional[Tensor], stride: List[int], padding: List[int],
             dilation: List[int]) -> Tensor:
    """x (batch, channels, height, width), w (filters, channels, height, width); pairs (vertical, horizontal)."""
    return run_forward(x, w, bias, stride, padding, dilation)


@operator.register_fake
def _(x, w, bias, stride, padding, dilation):
    return _result(x, w, stride, padding, dilation)


@torch.library.custom_op("saturate::conv2d_backward", mutates_args=())
def backward_operator(d_y: Tensor, x: Tensor, w: Tensor, wanted: List[bool], stride: List[int], padding: List[int],
                      dilation: List[int]) -> Tuple[Tensor, Tensor]:
    return run_backward(d_y, x, w, wanted, stride, padding, dilation)


@backward_operator.register_fake
def _(d_y, x, w, wanted, stride, padding, dilation):
    sizes = [tuple(t.shape[i] for i in (0, 2, 3, 1)) if want else (0, 0, 0, 0) for t, want in zip((x, w), wanted)]
    return tuple(x.new_empty(size).permute(0, 3, 1, 2) for size in sizes)


def _save(ctx, inputs, output):
    x, w, _, *ctx.settings = inputs
    ctx.save_for_backward(x, w)


def _gradients(ctx, d_y, backward):
    wanted = list(ctx.needs_input_grad[:2])
    d_x, d_w = backward(d_y, *ctx.saved_tensors, wanted, *ctx.settings) if any(wanted) else (None, None)
    d_bias = d_y.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
    return d_x if wanted[0] else None, d_w if wanted[1] else None, d_bias, None, None, None


operator.register_autograd(lambda ctx, d_y: _gradients(ctx, d_y, backward_operator), setup_context=_save)


class Eager(torch.autograd.Function):
    """The operator's work and gradients, called directly."""

    @staticmethod
    def forward(ctx, *inputs):
        output = run_forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_y):
        return _gradients(ctx, d_y, run_backward)


def conv2d(x, weight, bias, stride, padding, dilation):
    x, weight, bias = views.autocast(x, weight, bias)
    named = [("x", x), ("weight", weight)] + ([] if bias is None else [("bias", bias)])
    for name, t in named:
        views.check(OP, name, t, FLOATS)
    views.same_type(OP, named)
    views.same_device(OP, named)
    _checks.convolution(OP, x.shape, weight.shape, None if bias is None else bias.shape, stride, padding, dilation)
    inputs = (x, weight, None if bias is None else bias.contiguous())
    if not views.is_plain(inputs):
        return operator(*inputs, list(stride), list(padding), list(dilation))
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return Eager.apply(*inputs, stride, padding, dilation)
    return run_forward(*inputs, stride, padding, dilation)
