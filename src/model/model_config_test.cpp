// SPDX-License-Identifier: Apache-2.0
#include "model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"
#include "model/hf_config.h"

namespace saturate::model {
namespace {

ModelConfig complete(std::string_view preset) {
  ModelConfig c = model_preset(preset);
  if (c.kind == ModelKind::encoder_decoder) {
    c.vocab_source = c.vocab_target = 32000;
    c.eos_id = 2;
    c.pad_id = c.decoder_start_id = 3;
  }
  return c;
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = 0;
  for (const ParameterShape& p : model_parameters(config)) count += p.elements();
  return count;
}

TEST(ModelConfig, PresetsAreValidAndSurviveBothForms) {
  for (const std::string_view name : model_preset_names()) {
    const ModelConfig c = complete(name);
    validate(c);
    EXPECT_TRUE(model_config_from_json(parse_json(to_json(c).dump(), "x"), "x") == c) << name;
    EXPECT_EQ(hf_refusal(c), std::nullopt) << name;
    EXPECT_TRUE(from_hf_config(parse_json(to_hf_config(c).dump(), "x"), "x") == c) << name;
  }
  EXPECT_THROW(model_preset("huge"), Error);
}

// Published sizes: GPT-2 as released (124,439,808; 1,557,611,200).
TEST(ModelConfig, ParameterCountsArePublishedOnes) {
  EXPECT_EQ(parameter_count(model_preset("gpt2-124m")), 124439808);
  EXPECT_EQ(parameter_count(model_preset("gpt2-1558m")), 1557611200);
}

TEST(ModelConfig, NamesTheFieldThatBreaksARule) {
  struct Case {
    std::function<void(ModelConfig&)> break_it;
    const char* message;
  };
  const Case cases[] = {
      {[](ModelConfig& c) { c.d_model = 0; }, "d_model is 0"},
      {[](ModelConfig& c) {
         c.heads = 7;
         c.kv_heads = 3;
       },
       "multiple of kv_heads"},
      {[](ModelConfig& c) { c.vocab_source = 5; }, "one vocabulary"},
      {[](ModelConfig& c) { c.norm_position = NormPosition::pre; }, "final_norm"},
      {[](ModelConfig& c) { c.dropout = 1.0f; }, "dropout is 1"},
      {[](ModelConfig& c) { c.dropout = std::nanf(""); }, "dropout is nan"},
      {[](ModelConfig& c) { c.eos_id = 32000; }, "eos_id is 32000"},
      {[](ModelConfig& c) { c.decoder_start_id = -1; }, "first input"},
      {[](ModelConfig& c) { c.kind = ModelKind::decoder_only; }, "no encoder"},
      {[](ModelConfig& c) { c.decoder_layers = std::numeric_limits<int64_t>::max(); },
       "decoder_layers"},
      {[](ModelConfig& c) {
         c.positions = PositionKind::rotary;
         c.head_size = 7;
       },
       "even head_size"},
      {[](ModelConfig& c) { c.norm_eps = 0; }, "norm_eps"},
  };
  for (const Case& test : cases) {
    ModelConfig c = complete("base");
    test.break_it(c);
    try {
      validate(c);
      ADD_FAILURE() << test.message;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(test.message), std::string::npos) << e.what();
    }
  }
}

TEST(ModelConfig, SaysWhyThereIsNoHuggingFaceClass) {
  ModelConfig c = complete("base");
  c.norm_position = NormPosition::pre;
  c.final_norm = true;
  c.shared_embeddings = false;
  EXPECT_EQ(*hf_refusal(c), "PegasusForConditionalGeneration has one vocabulary");
  EXPECT_EQ(*to_hf_config(c).find("model_type")->if_string(), "saturate");
  EXPECT_TRUE(from_hf_config(to_hf_config(c), "x") == c);

  const auto refusal = [](std::string_view preset,
                          const std::function<void(ModelConfig&)>& change) {
    ModelConfig changed = complete(preset);
    change(changed);
    validate(changed);
    EXPECT_TRUE(from_hf_config(to_hf_config(changed), "x") == changed);
    return hf_refusal(changed).value_or("none");
  };
  EXPECT_EQ(refusal("base", [](auto& m) { m.final_norm = true; }),
            "MarianMTModel has no final norm");
  const auto refusal_of_pre_norm = [&](const std::function<void(ModelConfig&)>& change) {
    return refusal("base", [&](ModelConfig& m) {
      m.norm_position = NormPosition::pre;
      m.final_norm = true;
      change(m);
    });
  };
  EXPECT_EQ(refusal_of_pre_norm([](auto&) {}), "none");
  EXPECT_EQ(refusal_of_pre_norm([](auto& m) { m.tied_output = false; }),
            "PegasusForConditionalGeneration has the embeddings as its output");
  EXPECT_EQ(refusal_of_pre_norm([](auto& m) { m.gated = true; }),
            "PegasusForConditionalGeneration has no gated activation");
  EXPECT_EQ(refusal("base", [](auto& m) { m.gated = true; }),
            "MarianMTModel has no gated activation");
  EXPECT_EQ(refusal("base", [](auto& m) { m.biases = false; }), "MarianMTModel has biases");
  EXPECT_EQ(refusal("base", [](auto& m) { m.norm_eps = 1e-6f; }),
            "MarianMTModel has norm_eps 1e-5");
  EXPECT_EQ(refusal("base", [](auto& m) { m.positions = PositionKind::learned; }),
            "MarianMTModel has sinusoidal positions");
  EXPECT_EQ(refusal("base", [](auto& m) { m.pad_id = -1; }),
            "MarianMTModel needs a pad_id of both vocabularies");
  EXPECT_EQ(refusal("gpt2-124m", [](auto& m) { m.positions = PositionKind::rotary; }),
            "GPT2LMHeadModel has learned positions");
  EXPECT_EQ(refusal("gpt2-124m", [](auto& m) { m.kv_heads = 4; }),
            "GPT2LMHeadModel has as many key heads as query heads");
  EXPECT_EQ(refusal("llama-110m", [](auto& m) { m.gated = false; }),
            "LlamaForCausalLM has a gated activation");
  EXPECT_EQ(refusal("llama-110m", [](auto& m) { m.scale_embedding = true; }),
            "LlamaForCausalLM does not scale embeddings");
  EXPECT_EQ(refusal("llama-110m", [](auto& m) { m.kv_heads = 4; }), "none");
  const auto refusal_of_experts = [&](const std::function<void(ModelConfig&)>& change) {
    return refusal("llama-110m", [&](ModelConfig& m) {
      m.experts = 4;
      change(m);
    });
  };
  EXPECT_EQ(refusal_of_experts([](auto&) {}), "none");
  EXPECT_EQ(refusal_of_experts([](auto& m) { m.biases = true; }),
            "MixtralForCausalLM has no biases");
  EXPECT_EQ(refusal_of_experts([](auto& m) { m.expert_every = 2; }),
            "MixtralForCausalLM has experts in every layer");
  EXPECT_EQ(refusal_of_experts([](auto& m) { m.expert_routing = ExpertRouting::gshard; }),
            "MixtralForCausalLM drops no token");
  EXPECT_EQ(refusal_of_experts([](auto& m) { m.capacity_factor = 2; }),
            "MixtralForCausalLM has no capacity_factor");
  EXPECT_EQ(refusal_of_experts([](auto& m) { m.experts_per_token = 1; }),
            "MixtralForCausalLM divides gates by their sum");
  EXPECT_EQ(refusal_of_experts([](auto& m) { m.gated = false; }),
            "MixtralForCausalLM has a gated activation");
  EXPECT_EQ(refusal("gpt2-124m", [](auto& m) { m.experts = 4; }),
            "of the classes that it reads or writes only Mixtral has experts");
}

// The fields of a published translation model (OPUS-MT en-de).
TEST(HfConfig, ReadsPublishedMarian) {
  const Json json =
      parse_json(R"({"model_type":"marian","activation_function":"swish","d_model":512,
    "bad_words_ids":[[58100]],"bos_token_id":0,"eos_token_id":0,"pad_token_id":58100,
    "decoder_start_token_id":58100,"encoder_layers":6,"decoder_layers":6,"decoder_ffn_dim":2048,
    "encoder_ffn_dim":2048,"encoder_attention_heads":8,"decoder_attention_heads":8,"vocab_size":58101,
    "max_position_embeddings":512,"normalize_before":false,"scale_embedding":true,"dropout":0.1,
    "id2label":{"0":"LABEL_0"},"static_position_embeddings":true})",
                 "config.json");
  const ModelConfig c = from_hf_config(json, "config.json");
  EXPECT_EQ(c.activation, kernels::ActivationKind::silu);
  EXPECT_EQ(c.vocab_target, 58101);
  EXPECT_EQ(c.head_size, 64);
  EXPECT_EQ(c.decoder_start_id, 58100);
  EXPECT_TRUE(c.shared_embeddings && c.tied_output && c.scale_embedding);
}

// The fields of a published summariser (pegasus-xsum).
TEST(HfConfig, ReadsPublishedPegasus) {
  const Json json = parse_json(
      R"({"model_type":"pegasus","activation_function":"relu","add_bias_logits":false,
    "add_final_layer_norm":true,"d_model":1024,"decoder_attention_heads":16,"decoder_ffn_dim":4096,
    "decoder_layers":16,"decoder_start_token_id":0,"encoder_attention_heads":16,"encoder_ffn_dim":4096,
    "encoder_layers":16,"bos_token_id":0,"eos_token_id":1,"pad_token_id":0,"forced_eos_token_id":1,
    "extra_pos_embeddings":1,"max_position_embeddings":512,"normalize_before":true,
    "normalize_embedding":false,"scale_embedding":true,"static_position_embeddings":true,
    "vocab_size":96103,"dropout":0.1,"num_beams":8,"length_penalty":0.6})",
      "config.json");
  const ModelConfig c = from_hf_config(json, "config.json");
  EXPECT_EQ(c.norm_position, NormPosition::pre);
  EXPECT_TRUE(c.final_norm && c.shared_embeddings && c.tied_output && c.scale_embedding);
  EXPECT_EQ(c.vocab_source, 96103);
  EXPECT_EQ(c.decoder_start_id, 0);
  EXPECT_EQ(c.eos_id, 1);
  EXPECT_FALSE(hf_refusal(c).has_value());
}

TEST(HfConfig, ReadsNewerLlama) {
  const Json json = parse_json(R"({"model_type":"llama","hidden_size":2048,"intermediate_size":8192,
    "num_attention_heads":32,"num_key_value_heads":8,"num_hidden_layers":16,"head_dim":64,
    "rms_norm_eps":1e-05,"rope_parameters":{"rope_theta":500000.0,"rope_type":"default"},"dtype":"bfloat16",
    "tie_word_embeddings":true,"vocab_size":128256,"eos_token_id":[128001,128008],"pad_token_id":null,
    "max_position_embeddings":131072,"bos_token_id":128000})",
                               "config.json");
  const ModelConfig c = from_hf_config(json, "config.json");
  EXPECT_EQ(c.rotary_base, 500000.0f);
  EXPECT_EQ(c.eos_id, 128001);
  EXPECT_EQ(c.pad_id, -1);
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_FALSE(c.biases);
}

TEST(HfConfig, ReadsMixtral) {
  const std::string text = R"("architectures":["MixtralForCausalLM"],"attention_dropout":0.0,
    "bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,
    "intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mixtral",
    "num_attention_heads":32,"num_experts_per_tok":2,"num_hidden_layers":32,"num_key_value_heads":8,
    "num_local_experts":8,"output_router_logits":false,"rms_norm_eps":1e-05,"router_aux_loss_coef":0.02,
    "tie_word_embeddings":false,"torch_dtype":"bfloat16","use_cache":true,"vocab_size":32000)";
  const ModelConfig c = from_hf_config(
      parse_json("{" + text + R"(,"sliding_window":null,"rope_theta":500000.0})", "c"), "c");
  EXPECT_EQ(c.experts, 8);
  EXPECT_EQ(c.experts_per_token, 2);
  EXPECT_EQ(c.head_size, 128);
  EXPECT_EQ(c.rotary_base, 500000.0f);
  EXPECT_EQ(c.router_aux_loss, 0.02f);
  EXPECT_EQ(c.router_z_loss, 0);
  EXPECT_FALSE(c.biases || c.tied_output);
  EXPECT_EQ(hf_refusal(c), std::nullopt);
  EXPECT_EQ(from_hf_config(parse_json("{" + text + "}", "c"), "c").rotary_base, 1e6f);
  for (const char* more : {R"("sliding_window":4096)", R"("num_local_experts":1)"})
    EXPECT_THROW(from_hf_config(parse_json("{" + text + "," + more + "}", "c"), "c"), Error);
}

TEST(HfConfig, RefusesWhatItCannotCompute) {
  const std::string llama = R"("model_type":"llama","hidden_size":64,"intermediate_size":128,
    "num_attention_heads":4,"num_hidden_layers":2,"vocab_size":100)";
  EXPECT_NO_THROW(from_hf_config(parse_json("{" + llama + "}", "c"), "c"));
  for (const char* more :
       {R"("rope_scaling":{"rope_type":"llama3","factor":32.0})", R"("hidden_act":"tanh")",
        R"("mlp_bias":true)", R"("head_dim":"64")", R"("num_key_value_heads":3)",
        R"("head_dim":9223372036854775807)", R"("eos_token_id":[])", R"("rope_theta":0)"}) {
    EXPECT_THROW(from_hf_config(parse_json("{" + llama + "," + more + "}", "c"), "c"), Error)
        << more;
  }
  for (
      const char* all :
      {R"({"model_type":"bert"})", R"({})", R"([])", R"({"model_type":"saturate"})",
       R"({"model_type":"gpt2","n_embd":7,"n_layer":1,"n_head":2,"vocab_size":5})",
       R"({"model_type":"gpt2","n_embd":9223372036854775807,"n_layer":1,"n_head":1,"vocab_size":5})"}) {
    EXPECT_THROW(from_hf_config(parse_json(all, "c"), "c"), Error) << all;
  }
}

TEST(Positions, SinusFirstThenCosine) {
  const int64_t width = 6;
  const std::vector<float> table = sinusoidal_positions(5, width);
  ASSERT_EQ(table.size(), 30u);
  for (int64_t p = 0; p < 5; ++p) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle =
          static_cast<double>(p) / std::pow(10000.0, 2.0 * static_cast<double>(i) / 6.0);
      const auto at = static_cast<size_t>(p * width + i);
      EXPECT_NEAR(table[at], std::sin(angle), epsilon_of(DType::f32));
      EXPECT_NEAR(table[at + 3], std::cos(angle), epsilon_of(DType::f32));
    }
  }
}

}  // namespace
}  // namespace saturate::model
