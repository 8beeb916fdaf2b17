# SPDX-License-Identifier: Apache-2.0
# The extension module. Private: use the functions of the package.
from typing import Any, List, Optional, Sequence, Tuple

version: str
with_cuda: bool
cuda_architectures: str

def cuda_device_count() -> int: ...

class Tensor:
    """A view of an array on the CPU or a GPU, or an array of its own. Strides in elements."""

    @staticmethod
    def view(
        data: int, shape: Sequence[int], strides: Sequence[int], dtype: str, cuda_index: int = -1
    ) -> Tensor: ...
    @staticmethod
    def from_dlpack(array: Any) -> Tensor: ...
    @staticmethod
    def empty(shape: Sequence[int], dtype: str, cuda_index: int = -1) -> Tensor: ...
    def reshaped(self, shape: Sequence[int], strides: Optional[Sequence[int]]) -> Tensor: ...
    def array(self) -> Any: ...
    @property
    def shape(self) -> Tuple[int, ...]: ...
    @property
    def strides(self) -> Tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def cuda_index(self) -> int: ...

class AttentionOptions:
    def __init__(
        self,
        *,
        sequences: int,
        cu_q: Optional[Tensor] = None,
        cu_k: Optional[Tensor] = None,
        max_q: int,
        max_k: int,
        causal: bool = False,
        bottom_right: bool = False,
        window_left: int = -1,
        window_right: int = -1,
        scale: float,
        soft_cap: float = 0.0,
        rotary_base: float = 0.0,
        dropout: float = 0.0,
        rng: Optional[Tensor] = None,
        bias: Optional[Tensor] = None,
        alibi_slopes: Optional[Tensor] = None,
        sinks: Optional[Tensor] = None,
        block_mask: Optional[Tensor] = None,
        block_size: int = 0,
        deterministic: bool = True,
    ) -> None: ...

def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, options: AttentionOptions, stream: int
) -> None: ...
def attention_backward(
    d_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    d_q: Tensor,
    d_k: Tensor,
    d_v: Tensor,
    delta: Tensor,
    d_bias: Optional[Tensor],
    d_alibi_slopes: Optional[Tensor],
    d_sinks: Optional[Tensor],
    workspace: Optional[Tensor],
    options: AttentionOptions,
    stream: int,
) -> None: ...
def attention_backward_workspace_bytes(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, options: AttentionOptions
) -> int: ...
def conv2d_forward(
    x: Tensor,
    w: Tensor,
    bias: Optional[Tensor],
    y: Tensor,
    *,
    stride: Tuple[int, int],
    padding: Tuple[int, int],
    dilation: Tuple[int, int],
    stream: int,
) -> None: ...
def conv2d_backward(
    d_y: Tensor,
    x: Tensor,
    w: Tensor,
    d_x: Optional[Tensor],
    d_w: Optional[Tensor],
    workspace: Optional[Tensor],
    *,
    stride: Tuple[int, int],
    padding: Tuple[int, int],
    dilation: Tuple[int, int],
    stream: int,
) -> None: ...
def matmul(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    bias: Optional[Tensor],
    workspace: Optional[Tensor],
    *,
    allow_tf32: bool,
    stream: int,
) -> None: ...
def matmul_workspace_bytes(a: Tensor, b: Tensor, d: Tensor, bias: Optional[Tensor], *, allow_tf32: bool) -> int: ...
def use_tuned(folder: str, cuda_index: int) -> Tuple[int, int, str, str]: ...
def use_untuned(cuda_index: int) -> None: ...

# The rest is there when the layers above the kernels were built (SATURATE_PROGRAM).
class Mailbox:
    """Numbers of requests of which something has come; the descriptor is readable while there is one."""

    def __init__(self) -> None: ...
    @property
    def descriptor(self) -> int: ...
    def take(self) -> List[int]: ...

class Request:
    def wait(self, seconds: float, any_piece: bool) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def error(self) -> str: ...
    @property
    def number(self) -> int: ...
    def cancel(self) -> None: ...
    def take_pieces(self) -> List[Tuple[int, str]]: ...
    def translations(self) -> List[List[Tuple[str, float, float, List[int], List[float]]]]: ...
    def generations(self) -> List[Tuple[str, List[int], str]]: ...

class Model:
    def __init__(
        self,
        folders: Sequence[str],
        *,
        weights: Sequence[float],
        device: str,
        precision: str,
        adapter: str,
        ids: bool,
        same_bits: bool,
        sequences: int,
        max_length: int,
    ) -> None: ...
    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: Optional[int],
        nbest: int,
        length_penalty: Optional[float],
        prefixes: Optional[Sequence[str]],
        repetition_penalty: float,
        no_repeat_ngram: int,
        min_length: int,
        max_length: int,
        mailbox: Optional[Mailbox],
    ) -> Request: ...
    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: Optional[int],
        stop: Sequence[str],
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        no_repeat_ngram: int,
        min_tokens: int,
        keep_pieces: bool,
        mailbox: Optional[Mailbox],
    ) -> Request: ...
    def close(self) -> None: ...
    def pieces(self, ids: Sequence[int]) -> List[str]: ...
    @property
    def folders(self) -> List[str]: ...
    @property
    def weights(self) -> List[float]: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def beam(self) -> int: ...
    @property
    def kind(self) -> str: ...
