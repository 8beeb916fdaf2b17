// SPDX-License-Identifier: Apache-2.0
#include "model/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/timed_part.h"
#include "model/finite.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"
#include "model/transformer.h"

namespace saturate::model {
namespace {

ParameterId need(const ParameterStore& store, const std::string& name) {
  const ParameterId id = store.find(name);
  SAT_ASSERT(id.index >= 0);
  return id;
}

std::span<const float> values_of(const ParameterStore& store, const std::vector<float>& masters,
                                 const std::string& name) {
  const ParameterSpec& p = store.spec(need(store, name));
  return std::span<const float>(masters).subspan(static_cast<size_t>(p.offset),
                                                 static_cast<size_t>(p.size()));
}

// Told once in a process, not with every checkpoint.
void warn_of_start_row(const ModelConfig& config, std::span<const float> table) {
  static std::atomic<bool> told = false;
  const auto row = table.subspan(static_cast<size_t>(config.pad_id * config.d_model),
                                 static_cast<size_t>(config.d_model));
  if (std::ranges::all_of(row, [](float v) { return v == 0.0f; }) || told.exchange(true)) return;
  log_warning(
      "this model's pad row is not zero, as in those trained before it was held there: Saturate "
      "and transformers translate with it, Marian and CTranslate2 take zeros and give other text; "
      "train a new model where they must agree");
}

}  // namespace

void require_finite(const ParameterStore& store, std::span<const float> masters) {
  const size_t at = first_not_finite(masters);
  if (at == masters.size()) return;
  std::string name;
  for (const ParameterSpec& p : store.specs()) {
    if (p.offset <= static_cast<int64_t>(at)) name = p.name;
  }
  throw Error(
      Errc::invalid_argument, "save",
      fmt::format("the weights are no longer finite ({} holds {}): training diverged; go on "
                  "from a checkpoint before that with --resume and a lower optimizer.lr or "
                  "optimizer.clip_norm",
                  name, masters[at]));
}

void save_model(const std::string& folder, const ModelConfig& config,
                const TranslateConfig& translate, const ParameterStore& store,
                const Buffer& masters) {
  std::vector<float> host(masters.bytes() / sizeof(float));
  const Stream stream(store.device());
  copy_to_host(stream, host.data(), masters.data(), masters.bytes());
  stream.synchronize();
  require_finite(store, host);
  if (!hf_refusal(config) && nearest_hf_class(config) == HfClass::marian &&
      config.decoder_start_id == config.pad_id) {
    warn_of_start_row(config, values_of(store, host, target_embedding_name(config)));
  }
  save_hf(folder, config, translate,
          [&](const std::string& name) { return values_of(store, host, name); });
}

namespace {

// `masters`: the flat array of `layout`. Rows that the folder has not are zero.
void read_weights_into(const std::string& folder, const ModelConfig& config,
                       const ParameterStore& layout, std::span<float> masters) {
  const TimedPart part("weights from the file");
  load_hf_weights(folder, config, [&](const std::string& name, std::span<const float> values) {
    const ParameterSpec& p = layout.spec(need(layout, name));
    SAT_ASSERT(std::ssize(values) <= p.size());
    float* const to = masters.data() + p.offset;
    std::fill(std::ranges::copy(values, to).out, to + p.size(), 0.0f);
  });
}

}  // namespace

std::vector<float> read_weights(const std::string& folder, const ModelConfig& config) {
  ParameterStore layout({}, DType::f32);  // places alone
  const Transformer model(config, layout);
  std::vector<float> masters(static_cast<size_t>(layout.padded_count()));
  read_weights_into(folder, config, layout, masters);
  return masters;
}

void load_weights(const std::string& folder, const ModelConfig& config, ParameterStore& store) {
  const Stream stream(store.device());
  const Buffer& masters = store.masters();
  if (!store.device().is_cuda() && store.wide_type() == DType::f32) {
    read_weights_into(folder, config, store,
                      {masters.as<float>(), masters.bytes() / sizeof(float)});
  } else {
    std::vector<float> values(static_cast<size_t>(store.padded_count()));
    read_weights_into(folder, config, store, values);
    store.set_all(stream, values);
  }
  store.refresh_compute(stream);
  stream.synchronize();
}

}  // namespace saturate::model
