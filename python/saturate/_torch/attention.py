# SPDX-License-Identifier: Apache-2.0
"""saturate.attention for PyTorch tensors: checks, then the operator over packed rows."""
import torch

from saturate import _checks
from saturate._torch import views
from saturate._torch.attention_op import apply

OP = "attention"
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _check_tensors(q, k, v, options):
    named = [("q", q), ("k", k), ("v", v)]
    for name, t in named:
        views.check(OP, name, t, FLOATS)
    views.same_type(OP, named)
    types = dict(
        bias=(q.dtype, torch.float32),
        alibi_slopes=(views.wide(q.dtype),),
        sinks=(views.wide(q.dtype),),
        block_mask=(torch.bool,),
        rng_state=(torch.int64,),
        cu_seqlens_q=(torch.int32,),
        cu_seqlens_k=(torch.int32,),
    )
    for name, allowed in types.items():
        if options[name] is not None:
            views.check(OP, name, options[name], allowed)
            named.append((name, options[name]))
    views.same_device(OP, named)
    for name, t in named[:3]:
        if t.dim() > 0 and t.shape[-1] > 1 and t.stride(-1) != 1 and t.numel() > 0:
            raise _checks.problem(
                OP, f"{name} of shape {tuple(t.shape)} has strides {t.stride()}; the last dimension must be "
                f"contiguous: call {name}.contiguous()"
            )


def _contiguous_last(t):
    return t if t is None or t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def pack_blocks(mask):
    """(..., blocks) bool as (..., words) int32, block n in bit n % 32 of word n // 32."""
    blocks = mask.shape[-1]
    padded = torch.nn.functional.pad(mask, (0, -blocks % 32)).unflatten(-1, (-1, 32))
    bits = torch.arange(32, device=mask.device, dtype=torch.int64)
    words = (padded.to(torch.int64) << bits).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def _random_state(options, q):
    state = options["rng_state"]
    if state is None:
        state = torch.randint(2**62, (2,), dtype=torch.int64, device=q.device)
    if state.shape != (2,):
        raise _checks.problem(OP, f"rng_state has shape {tuple(state.shape)}; it must be (2,): seed and step")
    return state.contiguous().view(torch.int32)


def attention(q, k, v, **options):
    q, k, v = views.autocast(q, k, v)
    _check_tensors(q, k, v, options)
    dense = _checks.layout(OP, q.shape, k.shape, v.shape) == "dense"
    dropout = _checks.number(OP, "dropout", options["dropout"])
    if not 0.0 <= dropout < 1.0:
        raise _checks.problem(OP, f"dropout is {dropout}; it must lie in [0, 1)")
    window_left, window_right = _checks.window_of(OP, options["window"])
    block_mask, block_size = options["block_mask"], options["block_size"]
    if (block_mask is None) != (block_size is None):
        raise _checks.problem(OP, "block_mask and block_size must be given together")
    deterministic = options["deterministic"]
    cu_q, cu_k = options["cu_seqlens_q"], options["cu_seqlens_k"]
    if dense:
        _checks.no_lengths(OP, options)
        batch, max_q, max_k = q.shape[0], q.shape[1], k.shape[1]
    else:
        batch = 0
        max_q, max_k = _checks.lengths(OP, q.shape[0], k.shape[0], options, q.is_cuda)
        cu_q = cu_q.contiguous()
        cu_k = cu_q if cu_k is None else cu_k.contiguous()
    o, lse = apply(
        q, k, v, _contiguous_last(options["bias"]), options["alibi_slopes"], options["sinks"], cu_q, cu_k,
        _random_state(options, q) if dropout > 0.0 else None,
        None if block_mask is None else pack_blocks(block_mask),
        0 if block_size is None else _checks.whole(OP, "block_size", block_size, 1),
        batch, max_q, max_k, bool(options["causal"]),
        _checks.is_bottom_right(OP, options["alignment"]), window_left, window_right,
        _checks.scale_of(OP, options["scale"], q.shape[-1]),
        _checks.number(OP, "softcap", options["softcap"]),
        0.0 if options["rotary_base"] is None else _checks.number(OP, "rotary_base", options["rotary_base"]),
        dropout, torch.are_deterministic_algorithms_enabled() if deterministic is None else bool(deterministic),
    )
    if not options["return_lse"]:
        return o
    lse = lse.detach()
    return o, lse.unflatten(1, (batch, max_q)).transpose(0, 1).contiguous() if dense else lse
