// SPDX-License-Identifier: Apache-2.0
#include "train/model_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "kernels/block_scaled/block_scaled.h"
#include "kernels/fp8/fp8.h"
#include "kernels/gemm/bf16/matmul_bf16_cpu.h"

namespace saturate::train {
namespace {

template <class Kind, size_t N>
Kind kind_named(const char* key, const std::string& text, const std::array<Kind, N>& kinds) {
  std::string names;
  for (const Kind kind : kinds) {
    if (text == model::name_of(kind)) return kind;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", model::name_of(kind));
  }
  throw Error(Errc::invalid_argument, "config",
              fmt::format("{} is \"{}\"; it takes {}", key, text, names));
}

template <class T, class U>
void take(T& field, const std::optional<U>& given) {
  if (given) field = static_cast<T>(*given);
}

void take_experts(model::ModelConfig& m, const ArchitectureConfig& given) {
  using model::ExpertRouting;
  take(m.experts, given.experts);
  const bool any = given.experts_per_token || given.expert_every || given.expert_routing ||
                   given.capacity_factor || given.router_aux_loss || given.router_z_loss;
  if (m.experts == 0) {
    if (!any) return;
    throw Error(Errc::invalid_argument, "config",
                "model.experts is 0, but another key says how experts are used; set model.experts "
                "or leave the other out");
  }
  if (given.expert_routing) {
    m.expert_routing = kind_named(
        "model.expert_routing", *given.expert_routing,
        std::array{ExpertRouting::dropless, ExpertRouting::switch_one, ExpertRouting::gshard});
    m.experts_per_token = m.expert_routing == ExpertRouting::switch_one ? 1 : 2;
  }
  take(m.experts_per_token, given.experts_per_token);
  take(m.expert_every, given.expert_every);
  take(m.capacity_factor, given.capacity_factor);
  take(m.router_aux_loss, given.router_aux_loss);
  take(m.router_z_loss, given.router_z_loss);
}

kernels::MomentType moments_of(const RunConfig& config) {
  using kernels::MomentType;
  const std::string& given = config.optimizer.moments;
  if (given == "fp32") return MomentType::wide;
  if (config.parallel.offload) {
    throw Error(Errc::invalid_argument, "config",
                fmt::format("optimizer.moments = {} is for moments on the device, and "
                            "parallel.offload = true keeps them in host memory in fp32; leave out "
                            "one of the two",
                            given));
  }
  return given == "bf16" ? MomentType::bf16 : MomentType::blocks;
}

}  // namespace

std::string preset_name(const RunConfig& config) {
  return config.model.preset == "auto" ? "base" : config.model.preset;
}

bool is_language_model(const RunConfig& config) {
  return model::model_preset(preset_name(config)).kind == model::ModelKind::decoder_only;
}

int64_t vocabulary_size(const RunConfig& config) {
  if (config.data.vocab_size) return *config.data.vocab_size;
  return is_language_model(config) ? model_with(config).vocab_target : 8000;
}

int64_t longest_sentence(const RunConfig& config) {
  if (config.data.max_length) return *config.data.max_length;
  return is_language_model(config) ? model_with(config).max_positions : 256;
}

model::ModelConfig model_with(const RunConfig& config) {
  return model_with(config, model::model_preset(preset_name(config)));
}

model::ModelConfig model_with(const RunConfig& config, model::ModelConfig m) {
  using model::NormPosition;
  using model::PositionKind;
  const ArchitectureConfig& given = config.model;
  const int64_t preset_d = m.d_model;
  take(m.d_model, given.d_model);
  take(m.encoder_layers, given.encoder_layers);
  take(m.decoder_layers, given.decoder_layers);
  take(m.heads, given.heads);
  m.kv_heads = given.kv_heads.value_or(given.heads ? *given.heads : m.kv_heads);
  take(m.ffn, given.ffn);
  if (given.d_model && !given.ffn) m.ffn = m.ffn * m.d_model / preset_d;
  if (given.d_model || given.heads) {
    if (m.heads < 1 || m.d_model % m.heads != 0) {
      throw Error(
          Errc::invalid_argument, "config",
          fmt::format(
              "model.d_model {} is no multiple of model.heads {}; change one of them so that "
              "it divides",
              m.d_model, m.heads));
    }
    m.head_size = m.d_model / m.heads;
  }
  take(m.max_positions, given.max_positions);
  take(m.dropout, given.dropout);
  take(m.attention_dropout, given.attention_dropout);
  take(m.activation_dropout, given.activation_dropout);
  take(m.norm_eps, given.norm_eps);
  if (given.norm) {
    m.norm = kind_named("model.norm", *given.norm,
                        std::array{kernels::NormKind::layer_norm, kernels::NormKind::rms_norm});
  }
  if (given.norm_position) {
    m.norm_position = kind_named("model.norm_position", *given.norm_position,
                                 std::array{NormPosition::pre, NormPosition::post});
    m.final_norm = m.norm_position == NormPosition::pre;
  }
  if (given.activation) {
    using kernels::ActivationKind;
    m.activation = kind_named("model.activation", *given.activation,
                              std::array{ActivationKind::relu, ActivationKind::gelu_tanh,
                                         ActivationKind::gelu_erf, ActivationKind::silu});
  }
  take(m.gated, given.gated);
  if (given.positions) {
    m.positions = kind_named(
        "model.positions", *given.positions,
        std::array{PositionKind::sinusoidal, PositionKind::learned, PositionKind::rotary});
  }
  if (!given.mixers.empty()) m.mixers = given.mixers;
  const auto is_default = [](const std::string& name) { return name == "self_attention"; };
  if (std::ranges::all_of(m.mixers, is_default)) m.mixers.clear();
  take_experts(m, given);
  take(m.biases, given.bias);
  take(m.tied_output, given.tie_embeddings);
  return m;
}

model::Lora adapters_of(const RunConfig& config, std::span<const model::TensorMapping> model,
                        const std::string& base) {
  const LoraConfig& l = config.lora;
  if (l.rank == 0) return {};
  model::Lora lora = model::lora_for({.rank = l.rank,
                                      .alpha = l.alpha > 0 ? l.alpha : static_cast<double>(l.rank),
                                      .dropout = l.dropout,
                                      .rank_stabilised = l.rslora,
                                      .targets = l.targets,
                                      .base = base},
                                     model);
  lora.quantized_base = l.quantize_base == "nf4";
  return lora;
}

model::ModelConfig resolve_model(const RunConfig& config, const data::Tokenizer& source,
                                 const data::Tokenizer& target) {
  if (config.lora.rank > 0) {
    throw Error(
        Errc::invalid_argument, "config",
        fmt::format(
            "lora.rank is {}, and adapters need a trained model beside which they lie; give "
            "one with --init-from",
            config.lora.rank));
  }
  model::ModelConfig m = model_with(config);
  m.vocab_target = target.vocab_size();
  m.eos_id = target.eos_id();
  m.pad_id = target.pad_id();
  m.bos_id = target.eos_id();
  if (m.kind == model::ModelKind::encoder_decoder) {
    m.vocab_source = source.vocab_size();
    m.shared_embeddings = config.data.shared_vocabulary;
    m.decoder_start_id = target.pad_id();
    const int64_t longest = longest_sentence(config);
    if (config.model.max_positions && m.max_positions < longest) {
      throw Error(Errc::invalid_argument, "config",
                  fmt::format("model.max_positions is {}, but sentences of up to data.max_length = "
                              "{} tokens are trained on; raise the one or lower the other",
                              m.max_positions, longest));
    }
    m.max_positions = std::max(m.max_positions, longest);
  } else if (config.data.max_length.value_or(0) > m.max_positions) {
    throw Error(Errc::invalid_argument, "config",
                fmt::format("data.max_length is {}, and the model takes {} tokens "
                            "(model.max_positions); lower the one or raise the other",
                            *config.data.max_length, m.max_positions));
  }
  model::validate(m);
  return m;
}

bool rounds_operands(const std::string& precision) {
  return precision == "fp8" || precision == "mxfp8" || precision == "nvfp4";
}

DType resolve_precision(const std::string& precision, Device device) {
  // Not device_info(), which makes a context: a run does that beside its work on the text.
  const Capability& chip = capability_of(device);
  if (precision == "auto") {
    if (!device.is_cuda()) return DType::f32;
    return chip.major >= 8 ? DType::bf16 : DType::f16;
  }
  const bool rounds = rounds_operands(precision);
  if (precision == "fp32" || (rounds && !device.is_cuda())) return DType::f32;
  if (!device.is_cuda()) {
    if (precision == "bf16" && kernels::cpu_has_bf16()) return DType::f32;
    throw Error(
        Errc::unsupported, "config",
        precision == "bf16"
            ? "precision bf16 on the CPU needs AVX512-BF16, which this one lacks; use fp32"
            : fmt::format("precision {} needs a GPU; on the CPU use fp32 or bf16", precision));
  }
  if (precision == "fp16") return DType::f16;
  const char* const refusal = !rounds              ? nullptr
                              : precision == "fp8" ? kernels::fp8_refusal(device)
                                                   : kernels::block_refusal(device);
  if (refusal != nullptr) {
    throw Error(Errc::unsupported, "config",
                fmt::format("precision {}: {}, {} has {}.{}; use bf16 or fp16", precision, refusal,
                            device_info(device).name, chip.major, chip.minor));
  }
  if (chip.major < 8) {
    throw Error(Errc::unsupported, "config",
                fmt::format("precision bf16 needs compute capability 8.0, {} has {}.{}; use fp16",
                            device_info(device).name, chip.major, chip.minor));
  }
  return DType::bf16;
}

std::string precision_name(const ParameterStore& store) {
  return std::string(store.kernels().allow_bf16 ? "bf16" : name_of(store.compute_type()));
}

StepOptions resolve_step(const RunConfig& config, const data::BatchShape& shape, int ranks) {
  const auto f = [](double x) { return static_cast<float>(x); };
  StepOptions s;
  s.shape = shape;
  s.accumulate = config.batch.accumulate;
  // Without prefetch there is room for one step only, so a batch is made when the last one is done.
  s.slots = config.batch.accumulate * (config.train.prefetch ? 2 : 1);
  if (config.train.prefetch) s.slots = std::max(s.slots, config.data.prefetch);
  s.label_smoothing =
      f(config.train.label_smoothing.value_or(is_language_model(config) ? 0.0 : 0.1));
  s.optimizer.beta1 = f(config.optimizer.beta1);
  s.optimizer.beta2 = f(config.optimizer.beta2);
  s.optimizer.eps = f(config.optimizer.eps);
  s.optimizer.weight_decay = f(config.optimizer.weight_decay);
  s.optimizer.clip_norm = f(config.optimizer.clip_norm);
  s.optimizer.ema_decay = f(config.optimizer.ema_decay);
  using Kind = OptimizerOptions::Kind;
  s.optimizer.kind = config.optimizer.kind == "muon"        ? Kind::muon
                     : config.optimizer.kind == "adafactor" ? Kind::adafactor
                                                            : Kind::adamw;
  s.optimizer.momentum = f(config.optimizer.momentum);
  s.optimizer.relative = config.optimizer.relative;
  s.optimizer.moments = moments_of(config);
  s.fp8 = config.train.precision == "fp8";
  if (config.train.precision == "mxfp8") s.blocks = kernels::BlockFormat::mxfp8_e4m3;
  if (config.train.precision == "nvfp4") s.blocks = kernels::BlockFormat::nvfp4;
  s.freeze = config.optimizer.freeze;
  constexpr std::array kinds{std::pair{"constant", ScheduleKind::constant},
                             std::pair{"inverse_sqrt", ScheduleKind::inverse_sqrt},
                             std::pair{"linear", ScheduleKind::linear},
                             std::pair{"cosine", ScheduleKind::cosine},
                             std::pair{"warmup_stable_decay", ScheduleKind::warmup_stable_decay}};
  for (const auto& [name, kind] : kinds) {
    if (config.schedule.kind == name) s.optimizer.schedule.kind = kind;
  }
  s.optimizer.schedule.peak_lr = f(config.optimizer.lr);
  s.optimizer.schedule.warmup_steps = config.schedule.warmup_steps;
  s.optimizer.schedule.total_steps =
      config.schedule.total_steps > 0 ? config.schedule.total_steps : config.train.max_steps;
  s.optimizer.schedule.final_ratio = f(config.schedule.final_ratio);
  s.optimizer.schedule.decay_fraction = f(config.schedule.decay_fraction);
  s.graph = config.train.graph;
  s.seed = static_cast<uint64_t>(config.train.seed);
  s.parallel = resolve_parallel(config.parallel, ranks);
  return s;
}

}  // namespace saturate::train
