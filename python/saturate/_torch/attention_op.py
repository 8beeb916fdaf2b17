# SPDX-License-Identifier: Apache-2.0
"""The operators saturate::attention and saturate::attention_backward over packed rows."""
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from saturate._build import core
from saturate._torch import views


def _rows(x):
    """`x` with the heads of a row side by side; a copy where they are not."""
    fits = x.stride(2) == 1 and (x.shape[1] == 1 or x.stride(1) == x.shape[2])
    return x if fits else x.contiguous()


def _options(x):
    """x: the arguments after q, k and v, by name."""
    tensors = ("cu_q", "cu_k", "rng", "bias", "alibi_slopes", "sinks", "block_mask")
    return core().AttentionOptions(**{k: views.view(v) if k in tensors else v for k, v in x.items()})


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
    """Output (rows, heads, value head size) and log-sum-exp (heads, rows)."""
    o = q.new_empty((q.shape[0], q.shape[1], v.shape[2]))
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=views.wide(q.dtype))
    q, k, v = _rows(q), _rows(k), _rows(v)
    options = _options(dict(
        bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, cu_q=cu_q, cu_k=cu_k, rng=rng, block_mask=block_mask,
        block_size=block_size, sequences=sequences, max_q=max_q, max_k=max_k, causal=causal,
        bottom_right=bottom_right, window_left=window_left, window_right=window_right, scale=scale,
        soft_cap=soft_cap, rotary_base=rotary_base, dropout=dropout, deterministic=deterministic,
    ))
    core().attention_forward(
        views.view(q), views.view(k), views.view(v), views.view(o), views.view(lse), options, views.stream_of(q)
    )
    return o, lse


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
    """Gradients of q, k, v and of bias, slopes and sinks where `wanted`, else empty tensors."""
    d_o = d_o.contiguous()
    d_q, d_k, d_v, d_bias, d_slopes, d_sinks = _empty_gradients(q, k, v, bias, wanted)
    delta = torch.empty_like(lse)
    q, k, v = _rows(q), _rows(k), _rows(v)
    options = _options(dict(
        bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, cu_q=cu_q, cu_k=cu_k, rng=rng, block_mask=block_mask,
        block_size=block_size, sequences=sequences, max_q=max_q, max_k=max_k, causal=causal,
        bottom_right=bottom_right, window_left=window_left, window_right=window_right, scale=scale,
        soft_cap=soft_cap, rotary_base=rotary_base, dropout=dropout, deterministic=deterministic,
    ))
    core().attention_backward(
        *[views.view(t) for t in (d_o, q, k, v, o, lse, d_q, d_k, d_v, delta)],
        *[views.view(t) if want else None for t, want in zip((d_bias, d_slopes, d_sinks), wanted)],
        options, views.stream_of(q),
    )
    return d_q, d_k, d_v, d_bias if not wanted[0] else d_bias.to(bias.dtype), d_slopes, d_sinks


def _empty_gradients(q, k, v, bias, wanted):
    wide = views.wide(q.dtype)
    sizes = (bias.shape if wanted[0] else (0,), (q.shape[1],) if wanted[1] else (0,),
             (q.shape[1],) if wanted[2] else (0,))
    return (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape),
            *(q.new_empty(size, dtype=wide) for size in sizes))


@attention_backward.register_fake
def _(d_o, q, k, v, o, lse, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, wanted, *rest):
    d_q, d_k, d_v, d_bias, d_slopes, d_sinks = _empty_gradients(q, k, v, bias, wanted)
    return d_q, d_k, d_v, d_bias.to(bias.dtype) if wanted[0] else d_bias, d_slopes, d_sinks


def _save(ctx, inputs, output):
    q, k, v, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, *rest = inputs
    o, lse = output
    ctx.save_for_backward(q, k, v, o, lse, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask)
    ctx.rest = rest


def _backward(ctx, d_o, d_lse):
    q, k, v, o, lse, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask = ctx.saved_tensors
    wanted = [t is not None and ctx.needs_input_grad[i] for i, t in enumerate((bias, alibi_slopes, sinks), start=3)]
    d_q, d_k, d_v, *others = attention_backward(
        d_o, q, k, v, o, lse, bias, alibi_slopes, sinks, cu_q, cu_k, rng, block_mask, wanted, *ctx.rest
    )
    others = [d if want else None for d, want in zip(others, wanted)]
    return (d_q, d_k, d_v, *others) + (None,) * (4 + len(ctx.rest))


attention.register_autograd(_backward, setup_context=_save)
