# SPDX-License-Identifier: Apache-2.0
"""What only a GPU has: streams, CUDA graphs, torch.compile with them, several devices."""
import pytest

torch = pytest.importorskip("torch")

import saturate  # noqa: E402
from conftest import has_gpu  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="no GPU, or saturate was built without CUDA")]


def qkv(dtype=torch.bfloat16, shape=(2, 200, 4, 64), grad=True):
    torch.manual_seed(2)
    return [torch.randn(shape, dtype=dtype, device="cuda", requires_grad=grad) for _ in range(3)]


def step(q, k, v, w, **options):
    """Attention and a product, forward and backward."""
    o = saturate.attention(q, k, v, causal=True, deterministic=True, **options)
    y = saturate.matmul(o.flatten(2), w)
    return (y, *torch.autograd.grad(y.float().square().mean(), (q, k, v, w)))


def weight():
    return torch.randn(256, 96, dtype=torch.bfloat16, device="cuda", requires_grad=True)


def test_current_stream_is_used():
    """Work on a side stream sees what that stream wrote before, and is not seen by a stream that has not waited."""
    q, k, v = qkv(grad=False)
    expected = saturate.attention(q, k, v)
    side = torch.cuda.Stream()
    late = torch.zeros_like(q)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        late.copy_(q)
        o = saturate.attention(late, k, v)
        assert not side.query(), "the call waited for the GPU"
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(o, expected)


@pytest.mark.parametrize("lengths", [200, 37])
def test_cuda_graph(lengths):
    """Captured with a shape that was never seen before, on inputs that change between replays."""
    shape = (3, lengths, 4, 64)
    inputs, w = qkv(shape=shape), weight()
    graph = torch.cuda.CUDAGraph()
    step(*qkv(shape=(1, 8, 4, 64)), weight())  # kernels are loaded; the offsets of `shape` are not made yet
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        outputs = step(*inputs, w)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            for x in (*inputs, w):
                x.copy_(torch.randn_like(x))
        graph.replay()
        expected = step(*inputs, w)
        for got, want in zip(outputs, expected):
            assert torch.equal(got, want)


def test_dropout_changes_between_replays():
    inputs, graph = qkv(grad=False), torch.cuda.CUDAGraph()
    saturate.attention(*inputs, dropout=0.3)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        o = saturate.attention(*inputs, dropout=0.3)
    graph.replay()
    first = o.clone()
    graph.replay()
    assert not torch.equal(first, o)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    inputs, w = qkv(), weight()
    expected = step(*inputs, w)

    def forward(q, k, v, w):
        return saturate.matmul(saturate.attention(q, k, v, causal=True).flatten(2), w)

    compiled = torch.compile(forward, fullgraph=True, mode=mode)
    for _ in range(4):  # with graphs: warm-up, capture, replays
        y = compiled(*inputs, w)
        grads = torch.autograd.grad(y.float().square().mean(), (*inputs, w))
        for got, want in zip((y, *grads), expected):
            torch.testing.assert_close(got, want, rtol=2e-2, atol=1e-3)


def test_compile_with_changing_lengths():
    def forward(q, k, v):
        return saturate.attention(q, k, v, causal=True)

    compiled = torch.compile(forward, fullgraph=True, dynamic=True)
    for length in (64, 65, 200):
        inputs = qkv(shape=(2, length, 4, 64), grad=False)
        assert torch.equal(compiled(*inputs), forward(*inputs))


def test_autocast():
    """float32 tensors take autocast's type, and gradients come back in float32."""
    q, k, v = qkv(dtype=torch.float32)
    w = weight().detach().float().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        y = saturate.matmul(saturate.attention(q, k.bfloat16(), v).flatten(2), w)
    assert y.dtype == torch.bfloat16
    grads = torch.autograd.grad(y.float().sum(), (q, k, v, w))
    assert all(g.dtype == torch.float32 for g in grads)
    expected = saturate.attention(*(x.bfloat16() for x in (q, k, v))).flatten(2) @ w.bfloat16()
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-1)


def test_time_on_the_host():
    """A call must not cost the host so much that a GPU waits; printed with -s. The bound is ten times what is usual."""
    import time

    inputs = qkv(shape=(1, 16, 4, 64))
    for name, call in dict(
        forward=lambda: saturate.attention(*inputs),
        forward_backward=lambda: saturate.attention(*inputs).sum().backward(),
        sdpa=lambda: torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs)),
        matmul=lambda: saturate.matmul(inputs[0][0, 0], inputs[1][0, 0].T),
    ).items():
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            call()
        microseconds = (time.perf_counter() - begin) / 200 * 1e6
        torch.cuda.synchronize()
        print(f"{name} {microseconds:.0f} us")
        assert microseconds < 5000


def test_lengths_must_be_told():
    rows = torch.zeros(10, 4, 64, device="cuda", dtype=torch.float16)
    offsets = torch.tensor([0, 10], dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="max_seqlen_q must be given"):
        saturate.attention(rows, rows, rows, cu_seqlens_q=offsets)
    with pytest.raises(ValueError, match="cu_seqlens_q on cpu"):
        saturate.attention(rows, rows, rows, cu_seqlens_q=offsets.cpu(), max_seqlen_q=10)
    with pytest.raises(ValueError, match="k on cpu"):
        saturate.attention(rows[None], rows[None].cpu(), rows[None])


def test_unsupported_says_why():
    q = torch.zeros(1, 8, 1, 64, device="cuda", dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="f64"):
        saturate.attention(q, q, q)


@pytest.mark.parametrize("size", [64, 128, 96])
def test_deterministic(size):
    inputs, w = qkv(shape=(2, 200, 4, size)), torch.randn(4 * size, 96, dtype=torch.bfloat16, device="cuda",
                                                          requires_grad=True)
    first = step(*inputs, w)
    for _ in range(20):
        for got, want in zip(step(*inputs, w), first):
            assert torch.equal(got, want)


def test_other_dlpack_arrays():
    class Array:
        """Not a torch.Tensor, but speaks DLPack as one."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    q, k, v = qkv(grad=False)
    o = torch.from_dlpack(saturate.attention(Array(q), Array(k), Array(v), causal=True))
    assert torch.equal(o, saturate.attention(q, k, v, causal=True))
    d = torch.from_dlpack(saturate.matmul(Array(q.flatten(2)), Array(weight().detach())))
    assert d.shape == (2, 200, 96)
    with pytest.raises(ValueError, match="one device"):
        saturate.attention(Array(q), Array(k.cpu()), Array(v))


def test_cupy():
    cupy = pytest.importorskip("cupy")
    x = cupy.random.default_rng(3).standard_normal((2, 50, 4, 64)).astype(cupy.float16)
    o, lse = (cupy.from_dlpack(r) for r in saturate.attention(x, x, x, causal=True, return_lse=True))
    expected = saturate.attention(*[torch.from_dlpack(x)] * 3, causal=True)
    assert torch.equal(torch.from_dlpack(o), expected) and lse.shape == (2, 4, 50)
    d = cupy.from_dlpack(saturate.matmul(x[0, 0], x[0, 1].T))
    cupy.testing.assert_allclose(d, x[0, 0] @ x[0, 1].T, rtol=2e-2, atol=2e-2)
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(cupy.cuda.get_current_stream().record())
    again = cupy.from_dlpack(saturate.attention(x, x, x, causal=True, stream=stream.ptr))
    stream.synchronize()
    assert (again == o).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_device_that_is_not_current():
    inputs, w = qkv(), weight()
    expected = step(*inputs, w)
    moved = [x.detach().to("cuda:1").requires_grad_() for x in (*inputs, w)]
    got = step(*moved)
    assert torch.cuda.current_device() == 0
    for a, b in zip(got, expected):
        assert torch.equal(a.cpu(), b.cpu())
