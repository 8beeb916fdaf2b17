# SPDX-License-Identifier: Apache-2.0
"""More models of transformers, each for one thing: soft cap and windows, sinks, both directions, values of another size."""
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers_test import LENGTH, compare, inputs_of  # noqa: E402

COMMON = dict(
    vocab_size=97, hidden_size=128, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=64, pad_token_id=0,
)


def gemma2():
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **COMMON, num_key_value_heads=2, head_dim=32, sliding_window=5, attn_logit_softcapping=3.0,
        query_pre_attn_scalar=16,
    ))


def gpt_oss():
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **COMMON, num_key_value_heads=2, head_dim=32, sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
    ))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(
        **COMMON, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    ))


def deepseek_v3():
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(
        **COMMON, num_key_value_heads=4, moe_intermediate_size=64, n_routed_experts=4, n_group=1, topk_group=1,
        num_experts_per_tok=2, first_k_dense_replace=1, kv_lora_rank=32, q_lora_rank=32, qk_rope_head_dim=16,
        qk_nope_head_dim=16, v_head_dim=24,
    ))


@pytest.mark.parametrize("kind", ["none", "right", "left"])
@pytest.mark.parametrize("make", [gemma2, gpt_oss, bert, deepseek_v3], ids=lambda f: f.__name__)
def test_equals_eager(make, kind, device):
    inputs = inputs_of(device, False, kind)
    real = inputs.get("attention_mask", torch.ones(3, LENGTH, device=device)).bool()
    compare(make, inputs, real, device)
