// SPDX-License-Identifier: Apache-2.0
// What a Transformer is made of: everything that decides its parameters and its formula.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"
#include "model/lora.h"

namespace saturate::model {

enum class ModelKind : uint8_t { encoder_decoder, decoder_only };
// sandwich: before and after each sublayer, the second before its result joins the stream.
enum class NormPosition : uint8_t { pre, post, sandwich };
// relative: no positions in the embeddings, but a bias of the scores in self-attention
// (relative_buckets).
enum class PositionKind : uint8_t { sinusoidal, learned, rotary, relative };
// How fast the waves of channels slow down: channel i of d/2 by 10000^(-2i/d), as in the paper; or
// by 10000^(-i/(d/2 - 1)), as tensor2tensor, fairseq and Marian's own program have it.
enum class SinusoidSpacing : uint8_t { paper, tensor2tensor };
// How many experts compute a token, and whether an expert has places for a share of them only:
// all (dropless), one with places (Switch, arXiv:2101.03961), two with places of which the second is
// kept at random (GShard, arXiv:2006.16668).
enum class ExpertRouting : uint8_t { dropless, switch_one, gshard };

// The defaults are the base Transformer of Vaswani et al., arXiv:1706.03762, without vocabularies.
struct ModelConfig {
  ModelKind kind = ModelKind::encoder_decoder;
  int64_t d_model = 512;
  int64_t encoder_layers = 6;  // 0 for decoder_only
  int64_t decoder_layers = 6;
  int64_t heads = 8;
  int64_t kv_heads = 8;  // a divisor of heads
  int64_t head_size = 64;
  int64_t ffn = 2048;        // inner width; a gated activation has two projections of this width
  int64_t vocab_source = 0;  // 0 for decoder_only
  int64_t vocab_target = 0;
  bool shared_embeddings = true;  // source and target use one table (encoder_decoder only)
  bool tied_output = true;        // the output projection is the target embedding table
  kernels::NormKind norm = kernels::NormKind::layer_norm;  // layer_norm has a bias, rms_norm none
  NormPosition norm_position = NormPosition::post;
  bool final_norm = false;      // after the last layer of each stack; pre-norm needs it
  bool embedding_norm = false;  // before the first layer of each stack
  kernels::ActivationKind activation = kernels::ActivationKind::relu;
  bool gated = false;
  // The mixer of tokens in each layer of the decoder, taken in turn: "self_attention" or a name of
  // mixers/registry.cpp. Empty: self_attention in every layer.
  std::vector<std::string> mixers;
  // In every expert_every-th layer this many experts, each as wide as ffn says and without biases,
  // stand in for the feed-forward block; 0: nowhere, and the fields below keep their defaults.
  int64_t experts = 0;
  int64_t experts_per_token = 2;
  int64_t expert_every = 1;
  ExpertRouting expert_routing = ExpertRouting::dropless;
  float capacity_factor = 1.25f;  // places of an expert over its equal share; not of dropless
  float router_aux_loss = 0.01f;  // weight of the loss that balances experts
  float router_z_loss = 0.001f;   // weight of the loss that keeps the router's logits small
  PositionKind positions = PositionKind::sinusoidal;
  SinusoidSpacing sinusoid_spacing = SinusoidSpacing::paper;
  int64_t first_position = 0;  // sinusoidal: the position of a sequence's first token
  float rotary_base = 10000.0f;
  // Slower rotations for longer texts (kernels/rotary/rotary.h). factor 1: none.
  float rotary_factor = 1.0f, rotary_low = 1.0f, rotary_high = 4.0f;
  int64_t rotary_original = 0;
  // Buckets of distances to each of which a head of self-attention adds a number of its own, the same
  // in all layers of a stack; distances from relative_distance on share the last one.
  int64_t relative_buckets = 0, relative_distance = 128;
  int64_t max_positions = 512;   // longest sequence; the rows of a position table
  bool scale_embedding = true;   // embeddings times sqrt(d_model)
  bool biases = true;            // of every projection but the output
  bool qkv_biases = false;       // of q, k and v, where `biases` is false
  bool output_bias = false;      // one number for each target piece
  bool qk_norm = false;          // an RMS norm of each head of q and of k, before they are rotated
  float attention_scale = 0.0f;  // of scores; 0: 1/sqrt(head_size)
  float attention_soft_cap = 0.0f;  // s becomes cap * tanh(s / cap); 0: it stays
  float output_soft_cap = 0.0f;     // the same of logits
  // Self-attention of the decoder sees this many tokens, the token itself counted; 0: all. Every
  // full_attention_every-th layer sees all; 0: none does.
  int64_t window = 0, full_attention_every = 0;
  // The format of the files: the decoder's final norm there lacks a factor of d_model^-1/2 that its
  // weight has here (T5 with tied embeddings).
  bool scaled_final_norm = false;
  float dropout = 0.1f;  // of embeddings and of each sublayer's result
  float attention_dropout = 0.0f;
  float activation_dropout = 0.0f;
  float norm_eps = 1e-5f;
  int64_t pad_id = -1;  // -1: there is none
  int64_t bos_id = -1;
  int64_t eos_id = -1;
  std::vector<int64_t> more_eos_ids = {};  // end a text as eos_id does
  int64_t decoder_start_id = -1;           // first input of the decoder; encoder_decoder needs it
  // How programs that read generation_config.json draw from the model unless told otherwise: its
  // fields by sampling_of() as one JSON object, or "". Kept for them; nothing here follows it.
  std::string sampling = {};
  // Adapters, which alone train then. They lie in folders of their own (adapter_folder.h): files of
  // the model, and to_json(), do not know of them.
  Lora lora;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// tiny, base, big: encoder-decoder, vocabulary and special ids left open. gpt2-124m, gpt2-355m,
// gpt2-774m, gpt2-1558m, llama-110m: complete. Errors: invalid_argument, listing the names.
ModelConfig model_preset(std::string_view name);
std::vector<std::string_view> model_preset_names();

// Errors: invalid_argument with the field, its value, the rule. Bounds are such that no product of
// sizes overflows int64.
void validate(const ModelConfig& config);

// "model_type": "saturate" and every field under its name above; kinds as text. Reading wants every
// field and no other. Errors: invalid_argument naming `where` and the field.
Json to_json(const ModelConfig& config);
ModelConfig model_config_from_json(const Json& json, const std::string& where);

// The text of each kind, as configuration files write it.
std::string_view name_of(ModelKind kind);
std::string_view name_of(NormPosition position);
std::string_view name_of(PositionKind kind);
std::string_view name_of(ExpertRouting routing);
std::string_view name_of(kernels::NormKind kind);
std::string_view name_of(kernels::ActivationKind kind);

// One trained tensor: row-major, (rows, cols); a vector is (1, cols).
struct ParameterShape {
  std::string name;
  int64_t rows = 1, cols = 0;
  bool is_vector = false;            // norm weights and biases
  std::vector<int64_t> blocks = {};  // rows of the matrices that lie in it, see ParameterSpec
  int64_t elements() const noexcept { return rows * cols; }
};

// Every parameter as model files hold it, without the padding of vocabularies and without adapters, in the order in
// which Transformer declares them. Projections are (out, in); self.qkv has the rows of q, then k,
// then v; cross.kv those of k, then v; a gated ffn.in those of the gate, then up.
std::vector<ParameterShape> model_parameters(const ModelConfig& config);

// Embedding, encoder stack and decoder stack of one configuration use these names.
std::string source_embedding_name(const ModelConfig& config);
std::string target_embedding_name(const ModelConfig& config);

// table[p][i] = sin(q / 10000^(2i/width)) for i < half, table[p][half + i] the cosine of it, with
// half = width / 2 and q = p + first: (positions, width) row-major. This is Marian's layout; the
// paper interleaves. The other spacing has i / (half - 1) for 2i / width.
std::vector<float> sinusoidal_positions(int64_t positions, int64_t width,
                                        SinusoidSpacing spacing = SinusoidSpacing::paper,
                                        int64_t first = 0);

// The bucket of a key `distance` tokens behind (negative: before) the query, of
// config.relative_buckets: of the encoder both directions have buckets, of the decoder the past.
// Source: Raffel et al., arXiv:1910.10683, and T5's published code.
int64_t relative_bucket(const ModelConfig& config, bool encoder, int64_t distance);

// Why such a model cannot be trained here, or null: it is for inference.
const char* training_refusal(const ModelConfig& config);

}  // namespace saturate::model
