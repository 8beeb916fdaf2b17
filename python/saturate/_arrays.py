# SPDX-License-Identifier: Apache-2.0
"""attention, conv2d and matmul for arrays that speak DLPack: forward only, results in memory of our own."""
import math
import secrets

from saturate import _checks
from saturate._build import core

FLOATS = ("f64", "f32", "bf16", "f16")


def _tensor(op, name, array, types=FLOATS):
    if array is None:
        return None
    module = core()
    if isinstance(array, module.Tensor):
        return array
    try:
        tensor = module.Tensor.from_dlpack(array)
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(
            f"[{op}] {name} (of type {type(array).__name__}) gave no array that can be read: {error}"
        ) from None
    if tensor.dtype not in types:
        raise TypeError(f"[{op}] {name} is {tensor.dtype}; it must be one of {', '.join(types)}")
    return tensor


def _same(op, tensors):
    """tensors: name -> Tensor; raises where devices differ."""
    (first, one), *others = tensors.items()
    for name, t in others:
        if t.cuda_index != one.cuda_index:
            place = ["the CPU" if x.cuda_index < 0 else f"cuda:{x.cuda_index}" for x in (one, t)]
            raise ValueError(f"[{op}] {first} lies on {place[0]}, {name} on {place[1]}; move all to one device")


def _packed(op, name, t):
    """A dense (batch, rows, heads, size) tensor as packed rows, which share its memory."""
    batch, rows, heads, size = t.shape
    strides = t.strides
    if batch > 1 and rows > 0 and strides[0] != rows * strides[1]:
        raise _checks.problem(op, f"{name} of shape {t.shape} has strides {strides}; the rows of one batch must follow "
                                  "those of the one before: make it contiguous")
    return t.reshaped((batch * rows, heads, size), strides[1:])


def _check_layout(op, name, t):
    if t.shape and t.shape[-1] > 1 and t.strides[-1] != 1 and math.prod(t.shape) > 0:
        raise _checks.problem(op, f"{name} of shape {t.shape} has strides {t.strides}; the last dimension must be "
                                  "contiguous")



def attention(q, k, v, *, stream=None, **options):
    op = "attention"
    named = {name: _tensor(op, name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    for name, t in named.items():
        _check_layout(op, name, t)
    q, k, v = named.values()
    wide = "f64" if q.dtype == "f64" else "f32"
    types = dict(bias=(q.dtype, "f32"), alibi_slopes=(wide,), sinks=(wide,), cu_seqlens_q=("i32",),
                 cu_seqlens_k=("i32",))
    extra = {name: _tensor(op, name, options[name], allowed) for name, allowed in types.items()}
    _same(op, {**named, **{name: t for name, t in extra.items() if t is not None}})
    dense = _checks.layout(op, q.shape, k.shape, v.shape) == "dense"
    for name in ("block_mask", "rng_state"):
        if options[name] is not None:
            raise NotImplementedError(f"[{op}] {name} is taken with PyTorch tensors only")
    dropout = _checks.number(op, "dropout", options["dropout"])
    if dropout != 0.0:
        raise NotImplementedError(f"[{op}] dropout is {dropout}; it is for training, with PyTorch tensors only")
    shape = (*q.shape[:-1], v.shape[-1])
    if dense:
        _checks.no_lengths(op, options)
        batch, max_q, max_k = q.shape[0], q.shape[1], k.shape[1]
        q, k, v = _packed(op, "q", q), _packed(op, "k", k), _packed(op, "v", v)
    else:
        batch = 0
        max_q, max_k = _checks.lengths(op, q.shape[0], k.shape[0], options, q.cuda_index >= 0)
    window_left, window_right = _checks.window_of(op, options["window"])
    module = core()
    cu_q, cu_k = extra["cu_seqlens_q"], extra["cu_seqlens_k"]
    settings = module.AttentionOptions(
        sequences=batch, cu_q=cu_q, cu_k=cu_q if cu_k is None else cu_k, max_q=max_q, max_k=max_k,
        causal=bool(options["causal"]), bottom_right=_checks.is_bottom_right(op, options["alignment"]),
        window_left=window_left, window_right=window_right,
        scale=_checks.scale_of(op, options["scale"], q.shape[-1]),
        soft_cap=_checks.number(op, "softcap", options["softcap"]),
        rotary_base=0.0 if options["rotary_base"] is None else _checks.number(op, "rotary_base",
                                                                               options["rotary_base"]),
        bias=extra["bias"], alibi_slopes=extra["alibi_slopes"], sinks=extra["sinks"],
    )
    rows, heads = q.shape[0], q.shape[1]
    o = module.Tensor.empty((rows, heads, v.shape[-1]), q.dtype, q.cuda_index)
    lse = module.Tensor.empty((heads, rows), wide, q.cuda_index)
    module.attention_forward(q, k, v, o, lse, settings, 0 if stream is None else stream)
    result = o.reshaped(shape, None).array()
    if not options["return_lse"]:
        return result
    if dense:  # (heads, batch, rows) as (batch, heads, rows)
        lse = lse.reshaped((batch, heads, max_q), (max_q, batch * max_q, 1))
    return result, lse.array()


def matmul(a, b, bias, allow_tf32, stream):
    op = "matmul"
    named = {name: _tensor(op, name, x) for name, x in (("a", a), ("b", b), ("bias", bias)) if x is not None}
    _same(op, named)
    a, b, bias = named["a"], named["b"], named.get("bias")
    _checks.products(op, a.shape, b.shape, None if bias is None else bias.shape)
    module = core()
    *lead, m, k = a.shape
    shape = (*lead, m, b.shape[-1])
    if len(b.shape) == 2:
        rows = math.prod(lead) * m
        a = _merge(op, "a", a, len(lead) + 1, (rows, k))
    else:
        batch = math.prod(lead)
        a = _merge(op, "a", a, len(lead), (batch, m, k))
        b = _merge(op, "b", b, len(lead), (batch, *b.shape[-2:]))
    d = module.Tensor.empty((*a.shape[:-1], shape[-1]), a.dtype, a.cuda_index)
    taken = module.matmul_workspace_bytes(a, b, d, bias, allow_tf32=allow_tf32)
    workspace = module.Tensor.empty(((taken + 3) // 4,), "i32", a.cuda_index) if taken else None
    module.matmul(a, b, d, bias, workspace, allow_tf32=allow_tf32, stream=0 if stream is None else stream)
    return d.reshaped(shape, None).array()


def _merge(op, name, t, dims, shape):
    """`t` with its first `dims` dimensions as one."""
    strides = t.strides
    for i in range(dims - 1):
        if t.shape[i] > 1 and strides[i] != t.shape[i + 1] * strides[i + 1]:
            raise _checks.problem(op, f"{name} of shape {t.shape} has strides {strides}; its leading dimensions must "
                                      "follow each other: make it contiguous")
    return t.reshaped(shape, strides[dims - 1:])


def _channels_last(op, name, t):
    """A (batch, channels, height, width) array whose memory is (batch, height, width, channels), as that."""
    shape = tuple(t.shape[i] for i in (0, 2, 3, 1))
    strides = tuple(t.strides[i] for i in (0, 2, 3, 1))
    dense, step = [], 1
    for size in reversed(shape):
        dense.insert(0, step)
        step *= size
    if any(size > 1 and a != b for size, a, b in zip(shape, strides, dense)):
        raise _checks.problem(op, f"{name} of shape {t.shape} has strides {t.strides}; its channels must come last in "
                                  "memory: numpy.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)")
    return t.reshaped(shape, tuple(dense))


def conv2d(x, weight, bias, stride, padding, dilation, stream):
    op = "conv2d"
    named = {name: _tensor(op, name, t) for name, t in (("x", x), ("weight", weight), ("bias", bias)) if t is not None}
    _same(op, named)
    x, weight, bias = named["x"], named["weight"], named.get("bias")
    batch, filters, rows, columns = _checks.convolution(op, x.shape, weight.shape, None if bias is None else bias.shape,
                                                        stride, padding, dilation)
    y = core().Tensor.empty((batch, rows, columns, filters), x.dtype, x.cuda_index)
    core().conv2d_forward(_channels_last(op, "x", x), _channels_last(op, "weight", weight), bias, y, stride=stride,
                          padding=padding, dilation=dilation, stream=0 if stream is None else stream)
    pixels = rows * columns
    return y.reshaped((batch, filters, rows, columns), (pixels * filters, 1, columns * filters, filters)).array()
