# SPDX-License-Identifier: Apache-2.0
"""Tensors as the extension module sees them."""
import torch

from saturate._build import core

NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int32: "i32",
}


def check(op, name, tensor, types=tuple(NAMES)):
    """Raises TypeError or ValueError for a tensor that no kernel could read."""
    if tensor.dtype not in types:
        known = ", ".join(str(t).replace("torch.", "") for t in types)
        raise TypeError(f"[{op}] {name} is {tensor.dtype}; it must be one of {known}".replace("torch.", ""))
    if tensor.layout != torch.strided:
        raise TypeError(f"[{op}] {name} has layout {tensor.layout}; it must be strided: call to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"[{op}] {name} lies on {tensor.device}; it must lie on the CPU or an NVIDIA GPU")


def same_device(op, tensors):
    """tensors: (name, tensor) pairs; raises ValueError naming two that lie on different devices."""
    first_name, first = tensors[0]
    for name, tensor in tensors[1:]:
        if tensor.device != first.device:
            raise ValueError(
                f"[{op}] {first_name} lies on {first.device}, {name} on {tensor.device}; move all to one device"
            )


def same_type(op, tensors):
    first_name, first = tensors[0]
    for name, tensor in tensors[1:]:
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"[{op}] {first_name} is {first.dtype}, {name} {tensor.dtype}; convert them to one type".replace(
                    "torch.", ""
                )
            )


def view(tensor):
    """The caller keeps `tensor` alive until the kernel is enqueued."""
    if tensor is None:
        return None
    device = tensor.device
    return core().Tensor.view(
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        NAMES[tensor.dtype],
        device.index if device.type == "cuda" else -1,
    )


def stream_of(tensor):
    """PyTorch's current stream on the tensor's device; 0 on the CPU."""
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0


def wide(dtype):
    """Type of sums and statistics."""
    return torch.float64 if dtype == torch.float64 else torch.float32


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_plain(tensors):
    """Whether nothing looks at operators: no compiler, no function transform, no dispatch mode, no tensor subclass."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or any(t is not None and type(t) not in _PLAIN for t in tensors)
    )


def autocast(*tensors):
    """Under torch.autocast floating-point tensors other than float64 take its type, as in PyTorch's own products."""
    kind = tensors[0].device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    target = torch.get_autocast_dtype(kind)
    cast = (torch.float32, torch.bfloat16, torch.float16)
    return tuple(t if t is None or t.dtype not in cast else t.to(target) for t in tensors)
