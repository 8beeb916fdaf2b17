# SPDX-License-Identifier: Apache-2.0
"""torch.compile without a compiler: everything up to the graph, which then runs as it is. gpu_test.py has the rest."""
import pytest

torch = pytest.importorskip("torch")

import saturate  # noqa: E402


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True, **options)


def inputs(length=9, size=16):
    torch.manual_seed(6)
    return [torch.randn(2, length, 4, size, requires_grad=True) for _ in range(3)]


def check(function, arguments, **options):
    expected = function(*arguments)
    got = compiled(function, **options)(*arguments)
    torch.testing.assert_close(got, expected)
    leaves = [x for x in arguments if x.requires_grad]
    for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(expected.sum(), leaves)):
        torch.testing.assert_close(a, b)


def test_features():
    bias, sinks = torch.randn(1, 4, 9, 9, requires_grad=True), torch.randn(4, requires_grad=True)

    def function(q, k, v, bias, sinks):
        return saturate.attention(q, k, v, causal=True, bias=bias, sinks=sinks, window=(4, 0), softcap=5.0)

    check(function, [*inputs(), bias, sinks])


def test_packed():
    q, k, v = (x.detach().flatten(0, 1).requires_grad_() for x in inputs())
    offsets = torch.tensor([0, 5, 5, 18], dtype=torch.int32)
    check(lambda *x: saturate.attention(*x, cu_seqlens_q=offsets, max_seqlen_q=13), [q, k, v])


def test_heads_before_rows():
    check(lambda *x: saturate.attention(*(t.transpose(1, 2).contiguous().transpose(1, 2) for t in x)), inputs())


def test_products():
    w, b = torch.randn(64, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    check(lambda q, w, b: saturate.matmul(q.flatten(2), w, bias=b), [inputs()[0], w, b])


def test_changing_lengths():
    function = compiled(lambda q, k, v: saturate.attention(q, k, v, causal=True), dynamic=True)
    for length in (5, 6, 30):
        q, k, v = inputs(length)
        torch.testing.assert_close(function(q, k, v), saturate.attention(q, k, v, causal=True))


def test_wrong_arguments_are_told_while_compiling():
    with pytest.raises(Exception, match="must agree in the last dimension"):
        compiled(lambda q, k, v: saturate.attention(q, k[..., :8], v))(*inputs())


@pytest.mark.parametrize("name,kind", [("llama", "none"), ("llama", "left"), ("t5", "right"), ("mistral", "holes")])
def test_models(name, kind):
    models = pytest.importorskip("transformers_test")
    decoder = name != "t5"
    eager, ours = models.pair(getattr(models, name), "cpu")
    given = models.inputs_of("cpu", not decoder, kind)
    expected = eager(**given, use_cache=False).logits
    got = compiled(ours)(**given, use_cache=False).logits
    if decoder and kind != "none":
        real = given["attention_mask"].bool()
        expected, got = expected[real], got[real]
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)
