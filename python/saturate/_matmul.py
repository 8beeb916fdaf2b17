# SPDX-License-Identifier: Apache-2.0
from saturate import _dispatch


def matmul(a, b, *, bias=None, allow_tf32=False, stream=None):
    """Matrix product ``a @ b + bias``, with sums in float32 (float64 for float64).

    Shapes
    ------
    a (..., m, k) and b (k, n) give (..., m, n); a (..., m, k) and b (..., k, n) with equal leading dimensions
    are a batch of products. bias (n,). Sizes may be 0.

    Parameters
    ----------
    a, b, bias : torch.Tensor, or arrays that speak DLPack
        float32, bfloat16 or float16, on the CPU float32 or float64; all of one type, on one device. Transposed views
        are read as they lie; other strides are copied first.
    allow_tf32 : bool
        float32 on a GPU may use tensor cores with 10-bit mantissas. Without it large float32 products run, on
        Hopper, as sums of bfloat16 products that are more accurate than float32 arithmetic.
    stream : int, optional
        For arrays other than PyTorch's: a cudaStream_t, default the legacy stream. PyTorch's current stream
        is used for its tensors.

    Returns
    -------
    Array of the type of a. For arrays other than PyTorch's: a NumPy array on the CPU, an object that speaks
    DLPack on a GPU.

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
    Enqueued on the stream, never waits, can be captured in a CUDA graph; bitwise equal run to run. Gradients of a, b
    and bias.

    Example
    -------
    >>> saturate.matmul(torch.ones(2, 3), torch.ones(3, 4), bias=torch.ones(4))[0, 0]
    tensor(4.)
    """
    arrays = dict(a=a, b=b, bias=bias)
    if _dispatch.are_torch("matmul", arrays, required=("a", "b")):
        if stream is not None:
            raise ValueError("[matmul] stream is given with PyTorch tensors; use torch.cuda.stream(...) instead")
        from saturate._torch.matmul import matmul as implementation

        return implementation(a, b, bias, bool(allow_tf32))
    from saturate._arrays import matmul as implementation

    return implementation(a, b, bias, bool(allow_tf32), stream)
