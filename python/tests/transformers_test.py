# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with random weights: logits and gradients against its eager attention."""
import copy
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from saturate.integrations import transformers as integration  # noqa: E402

integration.register()


def llama():
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=128, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attention_dropout=0.0,
    )
    return transformers.LlamaForCausalLM(config)


def mistral():
    config = transformers.MistralConfig(
        vocab_size=97, hidden_size=128, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attention_dropout=0.0, sliding_window=5,
    )
    return transformers.MistralForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=64, n_embd=128, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


def marian():
    config = transformers.MarianConfig(
        vocab_size=97, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=160, decoder_ffn_dim=160, max_position_embeddings=64, dropout=0.0,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None,
    )
    return transformers.MarianMTModel(config)


def t5():
    config = transformers.T5Config(
        vocab_size=97, d_model=128, d_kv=32, d_ff=160, num_layers=2, num_heads=4, dropout_rate=0.0,
        relative_attention_num_buckets=8, relative_attention_max_distance=20, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


DECODERS = [llama, mistral, gpt2]
ENCODER_DECODERS = [marian, t5]
LENGTH = 19


def pair(make, device, dtype=torch.float32):
    """The same random model with eager attention and with ours."""
    torch.manual_seed(3)
    eager = make().to(device=device, dtype=dtype).eval()
    eager.set_attn_implementation("eager")
    # As from_pretrained does: T5's stacks copy the configuration when they are made.
    ours = type(eager)._from_config(copy.deepcopy(eager.config), attn_implementation="saturate")
    ours.load_state_dict(eager.state_dict())
    ours = ours.to(device=device, dtype=dtype).eval()
    if make is t5 and ours.config._attn_implementation == "eager":
        pytest.skip(f"T5 of transformers {transformers.__version__} knows eager attention only")
    assert ours.config._attn_implementation == "saturate"
    return eager, ours


def run(model, inputs, real):
    """Logits at real tokens, gradients of all parameters for the sum of log-probabilities there."""
    model.zero_grad()
    logits = model(**inputs, use_cache=False).logits.float()
    targets = torch.arange(logits.shape[1], device=logits.device).expand(logits.shape[:2]) % logits.shape[2]
    loss = torch.nn.functional.cross_entropy(logits[real], targets[real])
    loss.backward()
    return logits[real].detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def compare(make, inputs, real, device, tolerance=2e-5):
    eager, ours = pair(make, device)
    expected, expected_grads = run(eager, inputs, real)
    with mock.patch.object(integration, "attention", wraps=integration.attention) as called:
        logits, grads = run(ours, inputs, real)
    assert called.call_count > 1, "the model did not come to our attention"
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
    assert grads.keys() == expected_grads.keys()
    for name, expected_grad in expected_grads.items():
        size = expected_grad.abs().max().item()
        torch.testing.assert_close(grads[name], expected_grad, rtol=0, atol=tolerance * max(size, 1e-3), msg=name)


def mask_of(kind, device, batch=3):
    lengths = [LENGTH, 7, 12][:batch]
    mask = torch.zeros(batch, LENGTH, dtype=torch.long, device=device)
    for row, n in enumerate(lengths):
        if kind == "right":
            mask[row, :n] = 1
        elif kind == "left":
            mask[row, LENGTH - n :] = 1
        elif kind == "both":
            mask[row, 2 : min(LENGTH, n + 2)] = 1
        else:
            mask[row] = 1
    if kind == "holes":
        mask[1, 3:6] = 0
    return mask


def inputs_of(device, encoder_decoder, kind):
    torch.manual_seed(5)
    ids = torch.randint(2, 97, (3, LENGTH), device=device)
    inputs = dict(input_ids=ids)
    if kind != "none":
        inputs["attention_mask"] = mask_of(kind, device)
    if encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(2, 97, (3, 13), device=device)
    return inputs


@pytest.mark.parametrize("kind", ["none", "right", "left", "both", "holes"])
@pytest.mark.parametrize("make", DECODERS, ids=lambda f: f.__name__)
def test_decoder_equals_eager(make, kind, device):
    inputs = inputs_of(device, False, kind)
    real = inputs.get("attention_mask", torch.ones(3, LENGTH, device=device)).bool()
    compare(make, inputs, real, device)


@pytest.mark.parametrize("kind", ["none", "right", "left", "both", "holes"])
@pytest.mark.parametrize("make", ENCODER_DECODERS, ids=lambda f: f.__name__)
def test_encoder_decoder_equals_eager(make, kind, device):
    inputs = inputs_of(device, True, kind)
    compare(make, inputs, torch.ones(3, 13, dtype=torch.bool, device=device), device)


def test_decoder_padding_of_encoder_decoder(device):
    inputs = inputs_of(device, True, "right")
    inputs["decoder_attention_mask"] = mask_of("right", device)[:, :13]
    for make in ENCODER_DECODERS:
        compare(make, inputs, inputs["decoder_attention_mask"].bool(), device)


def test_mask_of_four_dimensions(device):
    inputs = inputs_of(device, False, "none")
    seen = torch.rand(3, 1, LENGTH, LENGTH, device=device) > 0.4
    seen = (seen | torch.eye(LENGTH, dtype=torch.bool, device=device)).tril()
    inputs["attention_mask"] = torch.zeros(seen.shape, device=device).masked_fill(~seen, float("-inf"))
    compare(llama, inputs, torch.ones(3, LENGTH, dtype=torch.bool, device=device), device)


@pytest.mark.parametrize("make", DECODERS + ENCODER_DECODERS, ids=lambda f: f.__name__)
def test_generates_what_eager_generates(make, device):
    eager, ours = pair(make, device)
    inputs = inputs_of(device, False, "left" if make in DECODERS else "right")
    settings = dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
    torch.testing.assert_close(ours.generate(**inputs, **settings), eager.generate(**inputs, **settings))


def test_packed_sequences(device):
    eager, ours = pair(llama, device)
    lengths = [5, 9, 3]
    ids = torch.randint(2, 97, (1, sum(lengths)), device=device)
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])[None]
    offsets = torch.tensor([0, 5, 14, 17], dtype=torch.int32, device=device)
    apart = torch.cat([eager(input_ids=part).logits for part in ids.split(lengths, dim=1)], dim=1)
    told = ours(input_ids=ids, position_ids=positions, use_cache=False, cu_seq_lens_q=offsets, cu_seq_lens_k=offsets,
                max_length_q=9, max_length_k=9).logits
    torch.testing.assert_close(told, apart, rtol=2e-5, atol=2e-5)
    found = ours(input_ids=ids, position_ids=positions, use_cache=False).logits  # transformers makes a mask
    torch.testing.assert_close(found, apart, rtol=2e-5, atol=2e-5)


def test_attention_weights_are_refused(device):
    _, ours = pair(llama, device)
    module = ours.model.layers[0].self_attn
    x = torch.randn(1, 4, 3, 32, device=device)
    with pytest.raises(ValueError, match="attn_implementation='eager'"):
        integration.attention_forward(module, x, x, x, None, output_attentions=True)
    with pytest.raises(ValueError, match="did not come through"):
        integration.attention_forward(module, x, x, x, torch.ones(1, 3, dtype=torch.bool, device=device))


def test_half_precision_on_a_gpu(device):
    if device == "cpu":
        pytest.skip("the CPU computes float32 and float64")
    inputs = inputs_of(device, False, "right")
    real = inputs["attention_mask"].bool()
    for make in DECODERS:
        eager, ours = pair(make, device, torch.bfloat16)
        exact, _ = run(copy.deepcopy(eager).float(), inputs, real)
        error = (run(ours, inputs, real)[0] - exact).abs().max().item()
        peer = (run(eager, inputs, real)[0] - exact).abs().max().item()
        assert error <= 2 * peer, f"{make.__name__}: error {error}, eager {peer}"


def test_compiled_model(device):
    if device == "cpu":
        pytest.skip("needs a compiler for the CPU, which not every machine has")
    eager, ours = pair(llama, device)
    inputs = inputs_of(device, False, "none")
    expected = eager(**inputs, use_cache=False).logits
    logits = torch.compile(ours, fullgraph=True)(**inputs, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
