# SPDX-License-Identifier: Apache-2.0
from typing import Any, Literal, Optional, Protocol, Tuple, TypeVar, overload

from torch import Tensor

class SpeaksDLPack(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...

Array = TypeVar("Array", bound=SpeaksDLPack)

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    alignment: Literal["top_left", "bottom_right"] = "top_left",
    window: Optional[Tuple[int, int]] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    bias: Optional[Array] = None,
    alibi_slopes: Optional[Array] = None,
    sinks: Optional[Array] = None,
    rotary_base: Optional[float] = None,
    block_mask: Optional[Tensor] = None,
    block_size: Optional[int] = None,
    dropout: float = 0.0,
    rng_state: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k: Optional[Array] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    deterministic: Optional[bool] = None,
    return_lse: Literal[False] = False,
    stream: Optional[int] = None,
) -> Array: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    alignment: Literal["top_left", "bottom_right"] = "top_left",
    window: Optional[Tuple[int, int]] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    bias: Optional[Array] = None,
    alibi_slopes: Optional[Array] = None,
    sinks: Optional[Array] = None,
    rotary_base: Optional[float] = None,
    block_mask: Optional[Tensor] = None,
    block_size: Optional[int] = None,
    dropout: float = 0.0,
    rng_state: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k: Optional[Array] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    deterministic: Optional[bool] = None,
    return_lse: Literal[True],
    stream: Optional[int] = None,
) -> Tuple[Array, Array]: ...
