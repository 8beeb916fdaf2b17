# SPDX-License-Identifier: Apache-2.0
"""``attn_implementation="saturate"`` for the models of Hugging Face transformers.

Example
-------
>>> from saturate.integrations import transformers as saturate_transformers
>>> saturate_transformers.register()
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="saturate")
"""
import importlib
import inspect

import torch

from saturate import attention
from saturate._torch import views
from saturate.integrations import _padding

NAME = "saturate"
_masks = None  # transformers.masking_utils, once registered: torch.compile cannot trace an import of it


def register(name=NAME):
    """Makes ``attn_implementation=name`` known to transformers (5.8 or later). Calling it again changes nothing.

    Padding masks run as packed sequences and cost no work on padding keys. Every other mask (holes inside a row, 4
    dimensions, patterns of the model's own, any mask under torch.compile) is added to the scores as a bias of the mask's
    size. What cannot be computed raises: attention weights (``output_attentions``) and head masks.

    Raises
    ------
    ImportError
        transformers is missing or older than 5.8.
    """
    global _masks
    try:
        _masks = importlib.import_module("transformers.masking_utils")
        from transformers import AttentionInterface, AttentionMaskInterface

        if "q_length" not in inspect.signature(_masks.sdpa_mask).parameters:
            raise ImportError("its masks are of an older make")
    except ImportError as error:
        raise ImportError(
            f"saturate.integrations.transformers needs transformers 5.8 or later ({error}); install it with "
            "pip install 'saturate[transformers]'"
        ) from error
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


def attention_mask(
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    mask_function=None,
    attention_mask=None,
    local_size=None,
    allow_is_causal_skip=True,
    **kwargs,
):
    """The mask that `attention_forward` gets: called by transformers once a forward pass.

    Returns None where the causal flag of the module says all, a (B, keys) bool mask for padding, else a
    (B, 1, queries, keys) bool mask. True: the token is seen.
    """

    def everything():
        made = _masks.sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, local_size=local_size,
            **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
        )
        return made[0] if isinstance(made, tuple) else made

    both_ways = mask_function is _masks.bidirectional_mask_function
    windowed = local_size is not None and allow_is_causal_skip and not both_ways
    if not both_ways and mask_function is not _masks.causal_mask_function and not windowed:
        return everything()
    window = local_size - 1 if windowed and kv_length > local_size else None
    if not both_ways:
        # The queries must be the last of the keys: attention_forward aligns their ends.
        if not isinstance(q_offset, int) or kv_offset != 0 or kv_length != q_offset + q_length:
            return everything()
    if attention_mask is None and window is None:
        return None
    device = kwargs.get("device", "cpu") if attention_mask is None else attention_mask.device
    if not _padding.may_wait(torch.device(device)):
        return everything()
    padding = None
    if attention_mask is None:
        mask = torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
    else:
        mask = attention_mask[:, kv_offset : kv_offset + kv_length]
        mask = torch.nn.functional.pad(mask, (0, kv_length - mask.shape[1]))  # a cache's free places are padding
        all_real, padding = _padding.describe(mask)
        if all_real and window is None:
            return None
        if not all_real and padding is None:
            return everything()
    mask.saturate = (padding, window)
    return mask


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    is_causal=None,
    position_bias=None,
    softcap=None,
    s_aux=None,
    **kwargs,
):
    """query (B, H, T, D), key and value (B, G, S, D) give (B, T, H, D) and None, as transformers wants them."""
    if kwargs.get("output_attentions"):
        raise ValueError(
            "[saturate] output_attentions is set, but the weights never exist as a whole; load the model with "
            "attn_implementation='eager' to see them"
        )
    if kwargs.get("head_mask") is not None:
        raise ValueError("[saturate] head_mask is given; load the model with attn_implementation='eager' to use it")
    q, k, v = (x.transpose(1, 2) for x in views.autocast(query, key, value))
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options = dict(
        scale=scaling,
        dropout=dropout,
        softcap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.float(),
    )
    by_flag = False  # a mask of 4 dimensions tells of the order too
    if kwargs.get("cu_seq_lens_q") is not None:
        return _packed(q, k, v, causal, position_bias, options, kwargs), None
    if attention_mask is not None and attention_mask.dim() == 2:
        padding, window = getattr(attention_mask, "saturate", (None, None))
        if padding is None and window is None:
            raise ValueError(
                f"[saturate] a mask of shape {tuple(attention_mask.shape)} did not come through transformers' mask "
                "functions; pass it as the model's attention_mask, or a bool mask (batch, 1, queries, keys)"
            )
        if window is not None:
            options["window"] = (window, -1)
        if padding is None:
            attention_mask = None
        elif position_bias is None or (padding.right and position_bias.shape[0] == 1):
            return _padded(q, k, v, causal, padding, position_bias, options), None
        else:
            by_flag = True
            attention_mask = attention_mask[:, None, None, :].expand(-1, -1, q.shape[1], -1)
    if attention_mask is not None:
        if attention_mask.dim() != 4:
            raise ValueError(
                f"[saturate] the attention mask has shape {tuple(attention_mask.shape)}; it must be (batch, keys) or "
                "(batch, heads or 1, queries, keys)"
            )
        position_bias = _as_bias(attention_mask[..., : k.shape[1]], position_bias, q.dtype)
        causal = causal and by_flag
    return attention(q, k, v, causal=causal, alignment="bottom_right", bias=position_bias, **options), None


def _as_bias(mask, position_bias, dtype):
    """A bool mask, or one to be added, together with a bias: -inf where nothing is seen."""
    if mask.dtype != torch.bool:
        return mask.to(dtype) if position_bias is None else (mask + position_bias).to(dtype)
    bias = torch.zeros((), dtype=dtype, device=mask.device) if position_bias is None else position_bias.to(dtype)
    return torch.where(mask, bias, float("-inf"))


def _padded(q, k, v, causal, padding, position_bias, options):
    cu_q, cu_k = padding.offsets(q.shape[1], causal)
    o = attention(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), causal=causal, alignment="bottom_right",
        bias=position_bias, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=q.shape[1], max_seqlen_k=k.shape[1],
        **options,
    )
    return o.unflatten(0, q.shape[:2])


def _packed(q, k, v, causal, position_bias, options, given):
    if q.shape[0] != 1 or position_bias is not None:
        raise ValueError(
            f"[saturate] cu_seq_lens_q is given with a batch of {q.shape[0]} and "
            f"{'a' if position_bias is not None else 'no'} position bias; packed sequences need a batch of 1 and no bias"
        )
    window = given.get("sliding_window")
    o = attention(
        q[0], k[0], v[0], causal=causal, alignment="bottom_right", window=None if window is None else (window - 1, -1),
        cu_seqlens_q=given["cu_seq_lens_q"], cu_seqlens_k=given.get("cu_seq_lens_k"),
        max_seqlen_q=given.get("max_length_q"), max_seqlen_k=given.get("max_length_k"), **options,
    )
    return o[None]
