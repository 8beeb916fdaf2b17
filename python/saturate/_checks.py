# SPDX-License-Identifier: Apache-2.0
"""Checks of attention's arguments that need only shapes: the same for every kind of array."""
import math
import numbers

MOST_ROWS = 2**31 - 1


def problem(op, what):
    return ValueError(f"[{op}] {what}")


def number(op, name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"[{op}] {name} is of type {type(value).__name__}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise problem(op, f"{name} is too large for a float") from None


def whole(op, name, value, least, most=MOST_ROWS):
    """`value` as an int within [least, most]."""
    if isinstance(value, bool) or not isinstance(value, (int, numbers.Integral)):
        raise TypeError(f"[{op}] {name} is {value!r}, of type {type(value).__name__}; it must be an integer")
    if not least <= value <= most:
        raise problem(op, f"{name} is {value}; it must lie within {least} and {most}")
    return value if isinstance(value, int) else int(value)  # int() would fix a size that torch.compile keeps open


def scale_of(op, scale, head_size):
    if scale is None:
        return 1.0 / math.sqrt(head_size) if head_size > 0 else 1.0
    return number(op, "scale", scale)


def window_of(op, window):
    """(left, right), -1 for no bound."""
    if window is None:
        return -1, -1
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise problem(op, f"window is {window!r}; it must be a pair (left, right) of keys, -1 for no bound")
    return whole(op, "window[0]", window[0], -1), whole(op, "window[1]", window[1], -1)


def is_bottom_right(op, alignment):
    if alignment not in ("top_left", "bottom_right"):
        raise problem(op, f"alignment is {alignment!r}; it must be 'top_left' or 'bottom_right'")
    return alignment == "bottom_right"


def layout(op, q, k, v):
    """"dense" or "packed" from the three shapes.

    Raises ValueError unless they fit each other.
    """
    shapes = f"q has shape {tuple(q)}, k {tuple(k)} and v {tuple(v)}"
    if not len(q) == len(k) == len(v) or len(q) not in (3, 4):
        raise problem(op, f"{shapes}; all must be (batch, rows, heads, head size), or (rows, heads, head size) with "
                          "cu_seqlens_q")
    if len(q) == 4 and (q[0] != k[0] or q[0] != v[0]):
        raise problem(op, f"{shapes}; the first dimensions (batch) must be equal")
    if k[:-1] != v[:-1]:
        raise problem(op, f"{shapes}; k and v must agree in all but the last dimension")
    if q[-1] != k[-1]:
        raise problem(op, f"{shapes}; q and k must agree in the last dimension (head size)")
    if min(q[-2], k[-2], q[-1], v[-1]) < 1:
        raise problem(op, f"{shapes}; heads and head sizes must not be 0")
    if q[-2] % k[-2]:
        raise problem(op, f"{shapes}; the heads of k ({k[-2]}) must divide those of q ({q[-2]})")
    return "dense" if len(q) == 4 else "packed"


def lengths(op, q_rows, k_rows, options, on_gpu):
    """Longest sequences (max_q, max_k) of the packed layout; raises ValueError where they must be given."""
    cu_q, cu_k = options["cu_seqlens_q"], options["cu_seqlens_k"]
    max_q, max_k = options["max_seqlen_q"], options["max_seqlen_k"]
    if cu_q is None:
        raise problem(op, "q has 3 dimensions, so cu_seqlens_q must say where its sequences begin; dense arrays are "
                          "(batch, rows, heads, head size)")
    if cu_k is None and q_rows != k_rows:
        raise problem(op, f"q has {q_rows} rows and k {k_rows}, so cu_seqlens_k must be given too")
    if max_q is None and on_gpu:
        raise problem(op, "max_seqlen_q must be given on a GPU: reading cu_seqlens_q there would wait for it")
    if max_k is None and cu_k is not None and on_gpu:
        raise problem(op, "max_seqlen_k must be given on a GPU: reading cu_seqlens_k there would wait for it")
    if max_q is None:
        max_q = q_rows
    if max_k is None:
        max_k = max_q if cu_k is None else k_rows
    return whole(op, "max_seqlen_q", max_q, 0), whole(op, "max_seqlen_k", max_k, 0)


def no_lengths(op, options):
    """The dense layout takes none of the packed layout's arguments."""
    for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"):
        if options[name] is not None:
            raise problem(op, f"{name} is given with arrays of 4 dimensions; pass packed rows of 3 dimensions, or "
                              "leave it out")


def pair(op, name, value, least):
    """A whole number for both axes, or a pair (vertical, horizontal)."""
    values = value if isinstance(value, (tuple, list)) else (value, value)
    if len(values) != 2:
        raise problem(op, f"{name} is {value!r}; it must be a number or a pair (vertical, horizontal)")
    return tuple(whole(op, f"{name}[{i}]", v, least) for i, v in enumerate(values))


def convolution(op, x, w, bias, stride, padding, dilation):
    """Shape (batch, filters, height, width) of the result; raises ValueError where shapes do not fit."""
    shapes = f"x has shape {tuple(x)} and weight {tuple(w)}"
    if len(x) != 4 or len(w) != 4:
        raise problem(op, f"{shapes}; they must be (batch, channels, height, width) and (filters, channels, height, "
                          "width)")
    if x[1] != w[1]:
        raise problem(op, f"{shapes}; the channels ({x[1]} and {w[1]}) must be equal: there is one group")
    if min(w) < 1 or min(x[1:]) < 1:
        raise problem(op, f"{shapes}; of all dimensions only the batch may be 0")
    if bias is not None and tuple(bias) != (w[0],):
        raise problem(op, f"bias has shape {tuple(bias)}; it must be ({w[0]},), one value a filter")
    sizes = []
    for i, side in enumerate(("height", "width")):
        room = x[2 + i] + 2 * padding[i] - dilation[i] * (w[2 + i] - 1) - 1
        if room < 0:
            reach = dilation[i] * (w[2 + i] - 1) + 1
            raise problem(op, f"{side}: a filter that reaches over {reach} elements does not fit into {x[2 + i]} with "
                              f"{padding[i]} of padding on either side")
        sizes.append(room // stride[i] + 1)
    return (x[0], w[0], *sizes)


def products(op, a, b, bias):
    """Shapes of a matrix product; raises ValueError."""
    shapes = f"a has shape {tuple(a)} and b {tuple(b)}"
    if len(a) < 2 or len(b) < 2:
        raise problem(op, f"{shapes}; both must have at least 2 dimensions: view a vector as a matrix")
    if a[-1] != b[-2]:
        raise problem(op, f"{shapes}; a's columns ({a[-1]}) must be b's rows ({b[-2]})")
    if len(b) > 2 and a[:-2] != b[:-2]:
        raise problem(op, f"{shapes}; b must have 2 dimensions or the leading dimensions of a: expand it")
    if bias is not None and tuple(bias) != (b[-1],):
        raise problem(op, f"bias has shape {tuple(bias)}; it must be ({b[-1]},), one value a column")
