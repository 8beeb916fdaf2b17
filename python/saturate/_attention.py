# SPDX-License-Identifier: Apache-2.0
from saturate import _dispatch


def attention(
    q,
    k,
    v,
    *,
    causal=False,
    alignment="top_left",
    window=None,
    scale=None,
    softcap=0.0,
    bias=None,
    alibi_slopes=None,
    sinks=None,
    rotary_base=None,
    block_mask=None,
    block_size=None,
    dropout=0.0,
    rng_state=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    deterministic=None,
    return_lse=False,
    stream=None,
):
    """Softmax attention, ``softmax(scale * q @ k.T + ...) @ v``, without the score matrix in memory.

    Shapes
    ------
    B sequences, T queries and S keys each, H heads of q, G heads of k and v (G divides H: query head h
    reads key head ``h // (H // G)``), head size D, value head size E (often D).

    dense
        q (B, T, H, D), k (B, S, G, D), v (B, S, G, E) give (B, T, H, E).
    packed
        q (rows, H, D), k (key rows, G, D), v (key rows, G, E) give (rows, H, E): the sequences lie behind each
        other, sequence b from row ``cu_seqlens_q[b]`` to before ``cu_seqlens_q[b + 1]``. Rows outside give 0.

    Parameters
    ----------
    q, k, v : torch.Tensor, or arrays that speak DLPack
        float32, bfloat16 or float16, on the CPU float32 or float64; all of one type, on one device. The last
        dimension must be contiguous; heads that do not lie side by side in a row are copied first.
    causal : bool
        Query i sees keys up to its own position only.
    alignment : "top_left" or "bottom_right"
        Where queries stand when T and S differ: query 0 at key 0, or the last query at the last key.
        It places ``causal``, ``window``, ``alibi_slopes`` and ``rotary_base``.
    window : (int, int), optional
        Keys a query sees to its left and to its right besides its own; -1 is no bound on that side.
    scale : float, optional
        Default ``1 / sqrt(D)``.
    softcap : float
        Scores s become ``softcap * tanh(s / softcap)``, before bias; 0 is off.
    bias : (B or 1, H or 1, T or 1, S) array, optional
        Added to the scores, has a gradient; -inf hides a key. In the type of q or float32. Packed: T and S are the
        longest lengths, positions count from the start of a sequence.
    alibi_slopes, sinks : (H,) arrays, optional
        ALiBi's penalty ``slope * distance``, and the logit of a sink that takes part in the softmax of each head.
        float32 (float64 for float64); both have gradients.
    rotary_base : float, optional
        Rotates q and k by their positions (halves layout, whole head) before the product.
    block_mask : bool (B or 1, H or 1, ceil(T / block_size), ceil(S / block_size)) array, with block_size : int
        A pair of query and key is seen only where its block is True.
    dropout : float
        Probability in [0, 1) with which a weight is dropped after the softmax.
    rng_state : (2,) int64 tensor, optional
        Seed and step of the dropout, on the device of q. By default drawn from PyTorch's generator.
    cu_seqlens_q, cu_seqlens_k : (B + 1,) int32 arrays, optional
        Packed layout. ``cu_seqlens_k`` is ``cu_seqlens_q`` unless given. On a GPU the values cannot be checked
        without a wait: they must not decrease and must lie within the rows.
    max_seqlen_q, max_seqlen_k : int, optional
        Length of the longest sequence, or more. Must be given with offsets on a GPU.
    deterministic : bool, optional
        Whether gradients must be bitwise equal run to run; False allows faster sums, in the order of arrival. By
        default as ``torch.use_deterministic_algorithms`` says. The output is bitwise equal always.
    return_lse : bool
        Also return the logarithm of each softmax's denominator, (B, H, T), packed (H, rows), in float32 (float64 for
        float64). It passes no gradient.
    stream : int, optional
        For arrays other than PyTorch's: a cudaStream_t, default the legacy stream. PyTorch's current stream
        is used for its tensors.

    Returns
    -------
    An array as q, or a pair of it and the log-sum-exp. A query that sees no key gives 0 (lse -inf).
    For arrays other than PyTorch's: a NumPy array on the CPU, an object that speaks DLPack on a GPU.

    Raises
    ------
    TypeError
        An argument is no array, or has the wrong type of elements.
    ValueError
        Shapes, strides, devices or values do not fit; the message says what was given and what is needed.
    NotImplementedError
        No kernel of this build computes this; the message says why for each.
    RuntimeError
        A CUDA call failed.

    Notes
    -----
    Enqueued on the stream, never waits, and can be captured in a CUDA graph.

    Example
    -------
    >>> q, k, v = (torch.randn(2, 128, 8, 64) for _ in range(3))
    >>> saturate.attention(q, k, v, causal=True).shape
    torch.Size([2, 128, 8, 64])
    """
    options = dict(
        causal=causal,
        alignment=alignment,
        window=window,
        scale=scale,
        softcap=softcap,
        bias=bias,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        rotary_base=rotary_base,
        block_mask=block_mask,
        block_size=block_size,
        dropout=dropout,
        rng_state=rng_state,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        deterministic=deterministic,
        return_lse=return_lse,
    )
    arrays = dict(q=q, k=k, v=v)
    for name in ("bias", "alibi_slopes", "sinks", "block_mask", "rng_state", "cu_seqlens_q", "cu_seqlens_k"):
        arrays[name] = options[name]
    if _dispatch.are_torch("attention", arrays, required=("q", "k", "v")):
        if stream is not None:
            raise ValueError("[attention] stream is given with PyTorch tensors; use torch.cuda.stream(...) instead")
        from saturate._torch.attention import attention as implementation

        return implementation(q, k, v, **options)
    from saturate._arrays import attention as implementation

    return implementation(q, k, v, stream=stream, **options)
