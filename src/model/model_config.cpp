// SPDX-License-Identifier: Apache-2.0
#include "model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "kernels/experts/routing.h"
#include "model/mixers/registry.h"

namespace saturate::model {
namespace {

using kernels::ActivationKind;
using kernels::NormKind;

// In the order of the enumerators.
constexpr std::array<std::string_view, 2> kKinds = {"encoder_decoder", "decoder_only"};
constexpr std::array<std::string_view, 3> kNormPositions = {"pre", "post", "sandwich"};
constexpr std::array<std::string_view, 4> kPositions = {"sinusoidal", "learned", "rotary",
                                                        "relative"};
constexpr std::array<std::string_view, 2> kSpacings = {"paper", "tensor2tensor"};
constexpr std::array<std::string_view, 3> kRoutings = {"dropless", "switch", "gshard"};
constexpr std::array<std::string_view, 2> kNorms = {"layer_norm", "rms_norm"};
constexpr std::array<std::string_view, 4> kActivations = {"relu", "gelu_tanh", "gelu_erf", "silu"};

// Shows each field once, with its name, to `visit`: writing and reading go through the same list.
template <class Config, class Visit>
void visit_fields(Config& c, Visit visit) {
  visit("kind", c.kind, kKinds);
  visit("d_model", c.d_model);
  visit("encoder_layers", c.encoder_layers);
  visit("decoder_layers", c.decoder_layers);
  visit("heads", c.heads);
  visit("kv_heads", c.kv_heads);
  visit("head_size", c.head_size);
  visit("ffn", c.ffn);
  visit("vocab_source", c.vocab_source);
  visit("vocab_target", c.vocab_target);
  visit("shared_embeddings", c.shared_embeddings);
  visit("tied_output", c.tied_output);
  visit("norm", c.norm, kNorms);
  visit("norm_position", c.norm_position, kNormPositions);
  visit("final_norm", c.final_norm);
  visit("activation", c.activation, kActivations);
  visit("gated", c.gated);
  visit("mixers", c.mixers);
  visit("positions", c.positions, kPositions);
  visit("rotary_base", c.rotary_base);
  visit("max_positions", c.max_positions);
  visit("scale_embedding", c.scale_embedding);
  visit("biases", c.biases);
  visit("dropout", c.dropout);
  visit("attention_dropout", c.attention_dropout);
  visit("activation_dropout", c.activation_dropout);
  visit("norm_eps", c.norm_eps);
  visit("pad_id", c.pad_id);
  visit("bos_id", c.bos_id);
  visit("eos_id", c.eos_id);
  visit("decoder_start_id", c.decoder_start_id);
}

// Of models that have experts; other files name none of these.
template <class Config, class Visit>
void visit_expert_fields(Config& c, Visit visit) {
  visit("experts", c.experts);
  visit("experts_per_token", c.experts_per_token);
  visit("expert_every", c.expert_every);
  visit("expert_routing", c.expert_routing, kRoutings);
  visit("capacity_factor", c.capacity_factor);
  visit("router_aux_loss", c.router_aux_loss);
  visit("router_z_loss", c.router_z_loss);
}

// Of families that others have published: a file names those alone that are not at their default.
template <class Config, class Visit>
void visit_family_fields(Config& c, Visit visit) {
  visit("embedding_norm", c.embedding_norm);
  visit("sinusoid_spacing", c.sinusoid_spacing, kSpacings);
  visit("first_position", c.first_position);
  visit("rotary_factor", c.rotary_factor);
  visit("rotary_low", c.rotary_low);
  visit("rotary_high", c.rotary_high);
  visit("rotary_original", c.rotary_original);
  visit("relative_buckets", c.relative_buckets);
  visit("relative_distance", c.relative_distance);
  visit("qkv_biases", c.qkv_biases);
  visit("output_bias", c.output_bias);
  visit("qk_norm", c.qk_norm);
  visit("attention_scale", c.attention_scale);
  visit("attention_soft_cap", c.attention_soft_cap);
  visit("output_soft_cap", c.output_soft_cap);
  visit("window", c.window);
  visit("full_attention_every", c.full_attention_every);
  visit("scaled_final_norm", c.scaled_final_norm);
  visit("more_eos_ids", c.more_eos_ids);
  visit("sampling", c.sampling);
}

struct FieldWriter {
  Json& out;
  template <class T>
  void operator()(const char* name, const T& value) {
    out.add(name, value);
  }
  template <class E, size_t N>
  void operator()(const char* name, const E& value, const std::array<std::string_view, N>& names) {
    out.add(name, std::string(names[static_cast<size_t>(value)]));
  }
  // Left out when it is empty, as in files from before there was a choice.
  void operator()(const char* name, const std::vector<std::string>& value) {
    if (!value.empty()) out.add(name, fmt::format("{}", fmt::join(value, ",")));
  }
  void operator()(const char* name, const std::vector<int64_t>& value) {
    Json ids = Json::Array{};
    for (const int64_t id : value) ids.push_back(id);
    out.add(name, std::move(ids));
  }
};

// Passes on to FieldWriter the fields that differ from those of `usual`, which has the same order.
struct ChangedFieldWriter {
  Json& out;
  const Json& usual;
  template <class... Arguments>
  void operator()(const char* name, const Arguments&... arguments) {
    Json one = Json::Object{};
    FieldWriter{one}(name, arguments...);
    if (*one.find(name) != *usual.find(name)) out.add(name, *one.find(name));
  }
};

struct FieldReader {
  JsonFields& in;
  void operator()(const char* name, int64_t& value) { value = in.integer(name); }
  void operator()(const char* name, bool& value) { value = in.boolean(name); }
  void operator()(const char* name, float& value) { value = static_cast<float>(in.number(name)); }
  void operator()(const char* name, std::vector<std::string>& value) {
    if (!in.has(name)) return;
    std::istringstream list(in.text(name));
    for (std::string item; std::getline(list, item, ',');) value.push_back(item);
  }
  void operator()(const char* name, std::string& value) { value = in.text(name); }
  void operator()(const char* name, std::vector<int64_t>& value) {
    for (const Json& id : in.list(name)) {
      if (id.if_int() == nullptr) in.fail(name, "a list of ids is needed");
      value.push_back(*id.if_int());
    }
  }
  template <class E, size_t N>
  void operator()(const char* name, E& value, const std::array<std::string_view, N>& names) {
    value = static_cast<E>(in.choice(name, names));
  }
};

// Fields that a file may leave out keep their defaults.
struct GivenFieldReader {
  JsonFields& in;
  template <class... Arguments>
  void operator()(const char* name, Arguments&... arguments) {
    if (in.has(name)) FieldReader{in}(name, arguments...);
  }
};

}  // namespace

std::string_view name_of(ModelKind kind) { return kKinds[static_cast<size_t>(kind)]; }
std::string_view name_of(NormPosition position) {
  return kNormPositions[static_cast<size_t>(position)];
}
std::string_view name_of(PositionKind kind) { return kPositions[static_cast<size_t>(kind)]; }
std::string_view name_of(ExpertRouting routing) { return kRoutings[static_cast<size_t>(routing)]; }
std::string_view name_of(NormKind kind) { return kNorms[static_cast<size_t>(kind)]; }
std::string_view name_of(ActivationKind kind) { return kActivations[static_cast<size_t>(kind)]; }

Json to_json(const ModelConfig& config) {
  Json out = {{"model_type", "saturate"}};
  visit_fields(config, FieldWriter{out});
  if (config.experts > 0) visit_expert_fields(config, FieldWriter{out});
  Json usual = Json::Object{};
  const ModelConfig defaults;
  visit_family_fields(defaults, FieldWriter{usual});
  visit_family_fields(config, ChangedFieldWriter{out, usual});
  return out;
}

ModelConfig model_config_from_json(const Json& json, const std::string& where) {
  ModelConfig config;
  JsonFields fields(json, "model", where);
  const std::array<std::string_view, 1> types = {"saturate"};
  fields.choice("model_type", types);
  visit_fields(config, FieldReader{fields});
  if (fields.has("experts")) visit_expert_fields(config, FieldReader{fields});
  static_cast<void>(fields.has("quantization_config"));  // of the folder's weights alone
  visit_family_fields(config, GivenFieldReader{fields});
  fields.reject_others();
  return config;
}

namespace {

void need(bool holds, const std::string& given, const char* rule) {
  if (!holds) throw Error(Errc::invalid_argument, "model", fmt::format("{}: {}", given, rule));
}

void need_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  throw Error(Errc::invalid_argument, "model",
              fmt::format("{} is {}: it must lie between {} and {}", name, value, low, high));
}

void need_probability(const char* name, float value) {
  need(value >= 0.0f && value < 1.0f, fmt::format("{} is {}", name, value),
       "a probability of dropping must lie in [0, 1)");
}

constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

void validate_sizes(const ModelConfig& c) {
  need_range("d_model", c.d_model, 1, 1 << 16);
  need_range("decoder_layers", c.decoder_layers, 1, 1024);
  need_range("heads", c.heads, 1, 1024);
  need_range("kv_heads", c.kv_heads, 1, c.heads);
  need_range("head_size", c.head_size, 1, 1024);
  need_range("ffn", c.ffn, 1, 1 << 20);
  need_range("vocab_target", c.vocab_target, 1, kMaxVocabulary);
  need_range("max_positions", c.max_positions, 1, 1 << 24);
  // A learned table is as large as the weights; a computed one as large as this number says.
  const int64_t width = c.positions == PositionKind::rotary ? c.head_size : c.d_model;
  if (c.positions != PositionKind::learned) {
    need_range("max_positions", c.max_positions, 1,
               (int64_t{1} << 27) / std::max<int64_t>(width, 1));
  }
  need(c.heads % c.kv_heads == 0, fmt::format("heads is {}, kv_heads {}", c.heads, c.kv_heads),
       "heads must be a multiple of kv_heads");
  if (c.kind == ModelKind::decoder_only) {
    need(c.encoder_layers == 0 && c.vocab_source == 0,
         fmt::format("encoder_layers is {}, vocab_source {}", c.encoder_layers, c.vocab_source),
         "a decoder_only model has no encoder; set both to 0");
    return;
  }
  need_range("encoder_layers", c.encoder_layers, 1, 1024);
  need_range("vocab_source", c.vocab_source, 1, kMaxVocabulary);
  need(!c.shared_embeddings || c.vocab_source == c.vocab_target,
       fmt::format("vocab_source is {}, vocab_target {}", c.vocab_source, c.vocab_target),
       "shared embeddings need one vocabulary; set shared_embeddings to false or use a joint one");
}

void validate_ids(const ModelConfig& c) {
  const int64_t last = c.vocab_target - 1;
  need_range("pad_id", c.pad_id, -1, last);
  need_range("bos_id", c.bos_id, -1, last);
  need_range("eos_id", c.eos_id, -1, last);
  need_range("decoder_start_id", c.decoder_start_id, -1, last);
  for (const int64_t id : c.more_eos_ids) need_range("more_eos_ids", id, 0, last);
  if (c.kind == ModelKind::decoder_only) return;
  need(c.eos_id >= 0 && c.eos_id < c.vocab_source,
       fmt::format("eos_id is {}, vocab_source {}", c.eos_id, c.vocab_source),
       "both sides of an encoder_decoder model end their sentences with this id");
  need(c.decoder_start_id >= 0, fmt::format("decoder_start_id is {}", c.decoder_start_id),
       "an encoder_decoder model needs a first input of the decoder");
}

void validate_experts(const ModelConfig& c) {
  if (c.experts == 0) return;
  need_range("experts", c.experts, 2, kernels::kMostExperts);
  need_range("experts_per_token", c.experts_per_token, 1,
             std::min(c.experts, kernels::kMostChoices));
  need_range("expert_every", c.expert_every, 1, std::max(c.encoder_layers, c.decoder_layers));
  const auto wants = [&](ExpertRouting routing, int64_t k) {
    need(c.expert_routing != routing || c.experts_per_token == k,
         fmt::format("expert_routing is {}, experts_per_token {}", name_of(c.expert_routing),
                     c.experts_per_token),
         "switch gives a token one expert and gshard two; set that, or expert_routing to dropless");
  };
  wants(ExpertRouting::switch_one, 1);
  wants(ExpertRouting::gshard, 2);
  const auto at_least = [](const char* name, float value, bool holds) {
    need(holds && std::isfinite(value), fmt::format("{} is {}", name, value),
         "a capacity factor is positive, the weight of a loss is not negative");
  };
  at_least("capacity_factor", c.capacity_factor, c.capacity_factor > 0);
  at_least("router_aux_loss", c.router_aux_loss, c.router_aux_loss >= 0);
  at_least("router_z_loss", c.router_z_loss, c.router_z_loss >= 0);
  need(c.activation_dropout == 0.0f, fmt::format("activation_dropout is {}", c.activation_dropout),
       "rows inside experts lie in an order of their own, which masks do not know; set it to 0 "
       "(dropout and attention_dropout work)");
}

void need_at_least(const char* name, float value, float least) {
  need(value >= least && std::isfinite(value), fmt::format("{} is {}", name, value),
       "it must be finite, and not below its least value (0; rotary factors: 1 or above 0)");
}

void validate_positions(const ModelConfig& c) {
  const int64_t width = c.positions == PositionKind::sinusoidal ? c.d_model : 2;
  need(width % 2 == 0, fmt::format("d_model is {}", c.d_model),
       "sinusoidal positions need an even d_model");
  need(c.sinusoid_spacing == SinusoidSpacing::paper || width >= 4 ||
           c.positions != PositionKind::sinusoidal,
       fmt::format("d_model is {}", c.d_model), "tensor2tensor's spacing needs 4 channels");
  need_range("first_position", c.first_position, 0, 1 << 16);
  if (c.positions == PositionKind::relative) {
    need_range("relative_buckets", c.relative_buckets, 4, 1 << 16);
    need_range("relative_distance", c.relative_distance, c.relative_buckets / 2 + 1, 1 << 20);
    need(c.relative_buckets % 4 == 0, fmt::format("relative_buckets is {}", c.relative_buckets),
         "it must be a multiple of 4: half of them for each direction, and half of these exact");
  } else {
    need(c.relative_buckets == 0, fmt::format("relative_buckets is {}", c.relative_buckets),
         "only relative positions have buckets");
  }
  if (c.positions != PositionKind::rotary) return;
  need(c.head_size % 2 == 0, fmt::format("head_size is {}", c.head_size),
       "rotary positions need an even head_size");
  need(c.rotary_base > 1.0f && std::isfinite(c.rotary_base),
       fmt::format("rotary_base is {}", c.rotary_base), "it must be above 1");
  need_at_least("rotary_factor", c.rotary_factor, 1.0f);
  need_range("rotary_original", c.rotary_original, 0, 1 << 24);
  if (c.rotary_original == 0) return;
  need(c.rotary_low > 0.0f && c.rotary_high > c.rotary_low && std::isfinite(c.rotary_high),
       fmt::format("rotary_low is {}, rotary_high {}", c.rotary_low, c.rotary_high),
       "they must be positive, the second above the first");
}

void validate_attention(const ModelConfig& c) {
  need_at_least("attention_scale", c.attention_scale, 0.0f);
  need_at_least("attention_soft_cap", c.attention_soft_cap, 0.0f);
  need_at_least("output_soft_cap", c.output_soft_cap, 0.0f);
  need_range("window", c.window, 0, 1 << 24);
  need_range("full_attention_every", c.full_attention_every, 0, 1024);
  const bool plain = c.mixers.empty();
  need(plain || (c.window == 0 && !c.qk_norm && c.relative_buckets == 0 &&
                 c.attention_soft_cap == 0.0f && c.attention_scale == 0.0f),
       fmt::format("mixers has {}", plain ? "" : c.mixers.front()),
       "window, soft cap, scale, norms of heads and relative positions are of self_attention in "
       "every layer");
}

}  // namespace

void validate(const ModelConfig& c) {
  validate_sizes(c);
  validate_ids(c);
  need(c.norm_position == NormPosition::post || c.final_norm,
       fmt::format("norm_position is {}, final_norm false", name_of(c.norm_position)),
       "the last sum is left without a norm; set final_norm to true");
  validate_positions(c);
  validate_attention(c);
  const std::optional<Json> sampling = try_parse_json(c.sampling);
  need(c.sampling.empty() || (sampling && sampling->if_object()), "sampling is " + c.sampling,
       "it must be one JSON object");
  need_probability("dropout", c.dropout);
  need_probability("attention_dropout", c.attention_dropout);
  need_probability("activation_dropout", c.activation_dropout);
  need(c.norm_eps > 0.0f && c.norm_eps < 1.0f, fmt::format("norm_eps is {}", c.norm_eps),
       "it must lie between 0 and 1");
  validate_experts(c);
  validate_mixers(c);
}

int64_t relative_bucket(const ModelConfig& c, bool encoder, int64_t distance) {
  int64_t buckets = c.relative_buckets, first = 0;
  if (encoder) {
    buckets /= 2;
    first = distance > 0 ? buckets : 0;
    distance = std::abs(distance);
  } else {
    distance = std::max<int64_t>(-distance, 0);
  }
  const int64_t exact = buckets / 2;
  if (distance < exact) return first + distance;
  // In floats, as the published code: where the logarithm is a whole number its rounding decides.
  const float ratio = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(static_cast<double>(c.relative_distance) /
                                                  static_cast<double>(exact))) *
                      static_cast<float>(buckets - exact);
  return first + std::min(exact + static_cast<int64_t>(ratio), buckets - 1);
}

const char* training_refusal(const ModelConfig& c) {
  if (c.positions == PositionKind::relative)
    return "relative positions (T5) have no gradient here; such a model can be run and evaluated";
  if (c.qk_norm)
    return "norms of query and key heads (Qwen 3) have no gradient here; such a model can be run "
           "and evaluated";
  if (c.output_soft_cap > 0)
    return "soft caps of the output (Gemma 2) have no gradient here; such a model can be run and "
           "evaluated";
  return nullptr;
}

}  // namespace saturate::model
