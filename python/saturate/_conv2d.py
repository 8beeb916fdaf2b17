# SPDX-License-Identifier: Apache-2.0
from saturate import _checks, _dispatch


def conv2d(x, weight, *, bias=None, stride=1, padding=0, dilation=1, stream=None):
    """Cross-correlation of images with filters, as ``torch.nn.functional.conv2d`` with one group.

    Shapes
    ------
    x (batch, channels, height, width) and weight (filters, channels, filter height, filter width) give
    (batch, filters, rows, columns). bias (filters,). The batch may be 0.

    Parameters
    ----------
    x, weight, bias : torch.Tensor, or arrays that speak DLPack
        float32, bfloat16 or float16 on a GPU, float32 or float64 on the CPU; all of one type, on one device. Kernels
        read images with the channels last in memory (PyTorch's ``channels_last``): other PyTorch tensors are copied
        so first, other arrays must lie so.
    stride, padding, dilation : int or (int, int)
        For both axes, or vertical and horizontal. Padding is of zeros, on either side.
    stream : int, optional
        For arrays other than PyTorch's: a cudaStream_t, default the legacy stream. PyTorch's current stream
        is used for its tensors.

    Returns
    -------
    Array of the type of x, channels last in memory. For arrays other than PyTorch's: a NumPy array on the CPU, an
    object that speaks DLPack on a GPU.

    Raises
    ------
    TypeError
        An argument is no array, or the types of elements differ or are not supported.
    ValueError
        Shapes, strides or devices do not fit; the message says what was given and what is needed.
    NotImplementedError
        No implementation of this build computes this.
    RuntimeError
        A CUDA call failed.

    Notes
    -----
    Sums in float32 (float64 for float64), bitwise equal run to run. Enqueued on the stream, never waits, can be
    captured in a CUDA graph. Gradients of x, weight and bias, once differentiable.

    Example
    -------
    >>> saturate.conv2d(torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3), padding=1).shape
    torch.Size([1, 3, 4, 4])
    """
    op = "conv2d"
    arrays = dict(x=x, weight=weight, bias=bias)
    is_torch = _dispatch.are_torch(op, arrays, required=("x", "weight"))
    settings = (_checks.pair(op, "stride", stride, 1), _checks.pair(op, "padding", padding, 0),
                _checks.pair(op, "dilation", dilation, 1))
    if is_torch:
        if stream is not None:
            raise ValueError("[conv2d] stream is given with PyTorch tensors; use torch.cuda.stream(...) instead")
        from saturate._torch.conv2d import conv2d as implementation

        return implementation(x, weight, bias, *settings)
    from saturate._arrays import conv2d as implementation

    return implementation(x, weight, bias, *settings, stream)
