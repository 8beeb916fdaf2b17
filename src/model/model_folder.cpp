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
#include "model/panel_file.h"
#include "model/transformer.h"

namespace saturate::model {
namespace {

ParameterId need(const ParameterStore& store, const std::string& name) {
  const ParameterId id = store.find(name);
  SAT_ASSERT(id.index >= 0);
  return id;
}

}  // namespace

// Told once in a process, not with every checkpoint.
void warn_of_start_row(const ModelConfig& config, const GetParameter& get) {
  static std::atomic<bool> told = false;
  if (hf_refusal(config) || nearest_hf_class(config) != HfClass::marian ||
      config.decoder_start_id != config.pad_id)
    return;
  const std::span<const float> table = get(target_embedding_name(config));
  const auto row = table.subspan(static_cast<size_t>(config.pad_id * config.d_model),
                                 static_cast<size_t>(config.d_model));
  if (std::ranges::all_of(row, [](float v) { return v == 0.0f; }) || told.exchange(true)) return;
  log_warning(
      "this model's pad row is not zero, as in those trained before it was held there: Saturate "
      "and transformers translate with it, Marian and CTranslate2 take zeros and give other text; "
      "train a new model where they must agree");
}

void save_model(const std::string& folder, const ModelConfig& config,
                const TranslateConfig& translate, const ParameterStore& store) {
  const Stream stream(store.device());
  std::vector<float> values;
  const auto get = [&](const std::string& name) -> std::span<const float> {
    const ParameterId id = need(store, name);
    values.resize(static_cast<size_t>(store.spec(id).size()));
    store.get(stream, id, values, store.shipped());
    require_finite(name, DType::f32, values.data(), values.size());
    return values;
  };
  if (!config.lora.empty()) return save_adapter(folder, config, get);
  warn_of_start_row(config, get);
  save_hf(folder, config, translate, get);
}

std::vector<float> read_weights(const std::string& folder, const ModelConfig& config,
                                const Adapter* adapter) {
  const TimedPart part("weights from the file");
  ParameterStore layout({}, DType::f32);  // places alone
  const Transformer model(config, layout);
  std::vector<float> masters(static_cast<size_t>(layout.padded_count()));
  load_hf_weights(folder, config, [&](const std::string& name, std::span<const float> values) {
    const ParameterSpec& p = layout.spec(need(layout, name));
    SAT_ASSERT(std::ssize(values) <= p.size());
    const std::span<float> mine(masters.data() + p.offset, values.size());
    std::ranges::copy(values, mine.begin());
    if (adapter != nullptr && adapter->lora.side_by_side == 0) adapter->merge(name, mine);
  });
  if (config.lora.side_by_side > 0) {
    for (const auto& [name, values] : adapter->values)
      std::ranges::copy(values, masters.begin() + layout.spec(need(layout, name)).offset);
  }
  return masters;
}

void load_weights(const std::string& folder, const ModelConfig& config, ParameterStore& store,
                  const Adapter* adapter, const std::shared_ptr<const PanelFile>& panels) {
  SAT_ASSERT(panels == nullptr || (adapter == nullptr && config.lora.empty()));
  const Stream stream(store.device());
  const Adapter* const beside =
      adapter != nullptr && adapter->lora.side_by_side > 0 ? adapter : nullptr;
  if (beside != nullptr) {
    for (const auto& [name, values] : beside->values)
      store.set(stream, need(store, name), values.data());
    adapter = nullptr;
  } else if (!config.lora.empty()) {
    ModelConfig base = config;
    base.lora = {};
    load_weights(config.lora.base, base, store);
    const Adapter own = read_adapter(folder, config.lora.base, base);
    for (const auto& [name, values] : own.values) {
      const ParameterId id = store.find(name);
      if (id.index < 0 || std::ssize(values) != store.spec(id).size()) {
        throw Error(Errc::invalid_argument, "load",
                    fmt::format("{}: {} is not that of the run's adapters", folder, name));
      }
      store.set(stream, id, values.data());
    }
    store.refresh_compute(stream);
    stream.synchronize();
    return;
  }
  const TimedPart part("weights from the file");
  std::vector<float> padded;
  const auto pack = [&](const std::string& name, const ParameterRows& rows) {
    const ParameterId id = need(store, name);
    const ParameterSpec& p = store.spec(id);
    if (!store.is_packed(id) || adapter != nullptr || p.rows - p.padding_rows != rows.rows)
      return false;
    store.pack(id, [&](int64_t first, int64_t count, float* room) {
      const int64_t there = std::clamp<int64_t>(rows.rows - first, 0, count);
      if (there == count) return rows.read(first, count, room);
      std::fill_n(room + there * p.cols, (count - there) * p.cols, 0.0f);
      const float* const read = there > 0 ? rows.read(first, there, room) : room;
      if (read != room) std::copy_n(read, there * p.cols, room);
      return static_cast<const float*>(room);
    });
    return true;
  };
  const auto set = [&](const std::string& name, std::span<const float> values) {
    const ParameterId id = need(store, name);
    const auto size = static_cast<size_t>(store.spec(id).size());
    SAT_ASSERT(values.size() <= size);
    if (values.size() < size || adapter != nullptr) {
      padded.assign(values.begin(), values.end());
      padded.resize(size);
      if (adapter != nullptr) adapter->merge(name, padded);
      values = padded;
    }
    store.set(stream, id, values.data());
  };
  const auto has = [&](const std::string& name) {
    if (panels == nullptr) return false;
    const ParameterId id = need(store, name);
    const ParameterSpec& p = store.spec(id);
    const char* const there = store.is_packed(id) ? panels->find(name, p.rows, p.cols) : nullptr;
    if (there != nullptr) store.pack(id, there, panels);
    return there != nullptr;
  };
  load_hf_weights(folder, config, set, pack, has);
  store.refresh_compute(stream);
  stream.synchronize();
}

}  // namespace saturate::model
