// SPDX-License-Identifier: Apache-2.0
#include "model/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/finite.h"
#include "model/hf_weights.h"

namespace saturate::model {
namespace {

ParameterId need(const ParameterStore& store, const std::string& name) {
  const ParameterId id = store.find(name);
  SAT_ASSERT(id.index >= 0);
  return id;
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
  save_hf(folder, config, translate, [&](const std::string& name) {
    const ParameterSpec& p = store.spec(need(store, name));
    return std::span<const float>(host).subspan(static_cast<size_t>(p.offset),
                                                static_cast<size_t>(p.size()));
  });
}

void load_weights(const std::string& folder, const ModelConfig& config, ParameterStore& store) {
  const Stream stream(store.device());
  std::vector<float> padded;
  load_hf_weights(folder, config, [&](const std::string& name, std::span<const float> values) {
    const ParameterId id = need(store, name);
    padded.assign(static_cast<size_t>(store.spec(id).size()), 0.0f);
    SAT_ASSERT(values.size() <= padded.size());
    std::copy(values.begin(), values.end(), padded.begin());
    store.set(stream, id, padded.data());
  });
  store.refresh_compute(stream);
  stream.synchronize();
}

}  // namespace saturate::model
