# SPDX-License-Identifier: Apache-2.0
"""The operators saturate::attention and saturate::attention_backward over packed rows, for torch.compile and whatever
else looks at operators, and the same without them, for plain eager calls: a fifth of the time on the host."""
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from saturate._build import core
from saturate._torch import views


def _rows(x):
    """`x` with the heads of a row side by side, and rows apart; a copy where they are not."""
    rows, heads, size = x.shape
    row, head, element = x.stride()
    fits = element == 1 and (heads == 1 or head == size) and (rows <= 1 or row >= heads * size)
    return x if fits else x.contiguous()


SETTINGS = ("block_size", "sequences", "max_q", "max_k", "causal", "bottom_right", "window_left", "window_right", "scale",
            "soft_cap", "rotary_base", "dropout", "deterministic")


def _options(bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, settings):
    view = views.view
    return core().AttentionOptions(
        bias=view(bias), alibi_slopes=view(alibi_slopes), sinks=view(sinks), cu_q=view(cu_q), cu_k=view(cu_k),
        rng=view(rng), block_mask=view(block_mask), **dict(zip(SETTINGS, settings)),
    )


def run_forward(q, k, v, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, *settings):
    """Output (rows, heads, value head size) and log-sum-exp (heads, rows); settings in the order of SETTINGS."""
    o = q.new_empty((q.shape[0], q.shape[1], v.shape[2]))
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=views.wide(q.dtype))
    q, k, v = _rows(q), _rows(k), _rows(v)
    options = _options(bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, settings)
    view = views.view
    core().attention_forward(view(q), view(k), view(v), view(o), view(lse), options, views.stream_of(q))
    return o, lse


def run_backward(d_o, q, k, v, o, lse, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, wanted, *settings):
    """Gradients of q, k, v and of bias, slopes and sinks where `wanted`, else empty tensors."""
    d_o = d_o.contiguous()
    d_q, d_k, d_v, d_bias, d_slopes, d_sinks = _empty_gradients(q, k, v, bias, wanted)
    delta = torch.empty_like(lse)
    q, k, v = _rows(q), _rows(k), _rows(v)
    options = _options(bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, settings)
    inputs = [views.view(t) for t in (q, k, v, o, lse)]
    scratch = core().attention_backward_workspace_bytes(*inputs, options)
    workspace = q.new_empty((scratch + 3) // 4, dtype=torch.int32) if scratch else None
    core().attention_backward(
        views.view(d_o), *inputs, *[views.view(t) for t in (d_q, d_k, d_v, delta)],
        *[views.view(t) if want else None for t, want in zip((d_bias, d_slopes, d_sinks), wanted)],
        views.view(workspace), options, views.stream_of(q),
    )
    return d_q, d_k, d_v, d_bias.to(bias.dtype) if wanted[0] else d_bias, d_slopes, d_sinks


def _empty_gradients(q, k, v, bias, wanted):
    wide = views.wide(q.dtype)
    sizes = (bias.shape if wanted[0] else (0,), (q.shape[1],) if wanted[1] else (0,),
             (q.shape[1],) if wanted[2] else (0,))
    return (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape),
            *(q.new_empty(size, dtype=wide) for size in sizes))


@torch.library.custom_op("saturate::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    sinks: Optional[Tensor],
    cu_q: Optional[Tensor],
    cu_k: Optional[Tensor],
    rng: Optional[Tensor],
    block_mask: Optional[Tensor],
    block_size: int,
    sequences: int,
    max_q: int,
    max_k: int,
    causal: bool,
    bottom_right: bool,
    window_left: int,
    window_right: int,
    scale: float,
    soft_cap: float,
    rotary_base: float,
    dropout: float,
    deterministic: bool,
) -> Tuple[Tensor, Tensor]:
    return run_forward(
        q, k, v, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask,
        block_size, sequences, max_q, max_k, causal, bottom_right, window_left, window_right, scale, soft_cap,
        rotary_base, dropout, deterministic,
    )


@attention.register_fake
def _(q, k, v, *rest):
    o = q.new_empty((q.shape[0], q.shape[1], v.shape[2]))
    return o, q.new_empty((q.shape[1], q.shape[0]), dtype=views.wide(q.dtype))


@torch.library.custom_op("saturate::attention_backward", mutates_args=())
def attention_backward(
    d_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    bias: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    sinks: Optional[Tensor],
    cu_q: Optional[Tensor],
    cu_k: Optional[Tensor],
    rng: Optional[Tensor],
    block_mask: Optional[Tensor],
    wanted: List[bool],
    block_size: int,
    sequences: int,
    max_q: int,
    max_k: int,
    causal: bool,
    bottom_right: bool,
    window_left: int,
    window_right: int,
    scale: float,
    soft_cap: float,
    rotary_base: float,
    dropout: float,
    deterministic: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return run_backward(
        d_o, q, k, v, o, lse, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, wanted,
        block_size, sequences, max_q, max_k, causal, bottom_right, window_left, window_right, scale, soft_cap,
        rotary_base, dropout, deterministic,
    )


@attention_backward.register_fake
def _(d_o, q, k, v, o, lse, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, wanted, *rest):
    d_q, d_k, d_v, d_bias, d_slopes, d_sinks = _empty_gradients(q, k, v, bias, wanted)
    return d_q, d_k, d_v, d_bias.to(bias.dtype) if wanted[0] else d_bias, d_slopes, d_sinks


def _save(ctx, inputs, output):
    q, k, v, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, *settings = inputs
    o, lse = output
    ctx.save_for_backward(q, k, v, o, lse, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask)
    ctx.settings = settings


def _gradients(ctx, d_o, backward):
    """Of q, k, v, bias, slopes and sinks, None where not wanted."""
    saved = ctx.saved_tensors
    wanted = [t is not None and ctx.needs_input_grad[i] for i, t in enumerate(saved[5:8], start=3)]
    d_q, d_k, d_v, *others = backward(d_o, *saved, wanted, *ctx.settings)
    return d_q, d_k, d_v, *(d if want else None for d, want in zip(others, wanted))


def _backward(ctx, d_o, d_lse):
    return _gradients(ctx, d_o, attention_backward) + (None,) * (4 + len(SETTINGS))


attention.register_autograd(_backward, setup_context=_save)


class Eager(torch.autograd.Function):
    """The operator's work and gradients, called directly; dense or packed q, k and v."""

    @staticmethod
    def forward(ctx, q, k, v, bias, alibi_slopes, sinks, others):
        ctx.shapes = q.shape, k.shape, v.shape
        rows = [_packed(x) for x in (q, k, v)]
        inputs = (*rows, bias, alibi_slopes, sinks, *others)
        o, lse = run_forward(*inputs)
        _save(ctx, inputs, (o, lse))
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # else zeros are made for lse
        return o.view(*q.shape[:-1], v.shape[-1]), lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, d_lse):
        if d_o is None:  # nothing depends on the output
            return (None,) * 7
        d_q, d_k, d_v, *others = _gradients(ctx, _packed(d_o), run_backward)
        return *(d.view(shape) for d, shape in zip((d_q, d_k, d_v), ctx.shapes)), *others, None


def _packed(x):
    return x.flatten(0, 1) if x.dim() == 4 else x


def apply(q, k, v, bias, alibi_slopes, sinks, *others):
    """Dense or packed q, k and v, then the operator's arguments; output in their layout, lse (heads, rows)."""
    inputs = (q, k, v, bias, alibi_slopes, sinks)
    plain = views.is_plain(inputs)
    if plain and torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return Eager.apply(*inputs, others)
    o, lse = (run_forward if plain else attention)(_packed(q), _packed(k), _packed(v), *inputs[3:], *others)
    return o.unflatten(0, q.shape[:2]) if q.dim() == 4 else o, lse
