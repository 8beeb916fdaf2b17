// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/registry.h"

#include <fmt/format.h>

#include "base/error.h"

namespace saturate::model {

extern const MixerKind kSelfAttention, kCrossAttention, kFeedForward, kLinearAttention, kExperts;

namespace {

constexpr const MixerKind* kMixers[] = {&kSelfAttention, &kCrossAttention, &kFeedForward,
                                        &kLinearAttention};

const MixerKind* find_choosable(const std::string& name) {
  for (const MixerKind* kind : kMixers) {
    if (kind->choosable && name == kind->name) return kind;
  }
  return nullptr;
}

}  // namespace

std::vector<const MixerKind*> layer_mixers(const ModelConfig& config, Stack stack, int64_t layer) {
  const bool routed = config.experts > 0 && (layer + 1) % config.expert_every == 0;
  const MixerKind* const each_token = routed ? &kExperts : &kFeedForward;
  if (stack == Stack::encoder) return {&kSelfAttention, each_token};
  const auto among = static_cast<size_t>(layer) % std::max<size_t>(config.mixers.size(), 1);
  const MixerKind* first =
      config.mixers.empty() ? &kSelfAttention : find_choosable(config.mixers[among]);
  SAT_ASSERT(first != nullptr);
  if (config.kind == ModelKind::decoder_only) return {first, each_token};
  return {first, &kCrossAttention, each_token};
}

void validate_mixers(const ModelConfig& config) {
  for (const std::string& name : config.mixers) {
    const MixerKind* kind = find_choosable(name);
    if (kind == nullptr) {
      std::string names;
      for (const MixerKind* k : kMixers) {
        if (k->choosable) names += fmt::format("{}{}", names.empty() ? "" : ", ", k->name);
      }
      throw Error(Errc::invalid_argument, "model",
                  fmt::format("mixers has \"{}\": it takes {}", name, names));
    }
    const char* refusal = kind->refusal(config);
    if (refusal == nullptr) continue;
    throw Error(Errc::invalid_argument, "model", fmt::format("mixers has {}: {}", name, refusal));
  }
}

}  // namespace saturate::model
