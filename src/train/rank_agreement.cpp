// SPDX-License-Identifier: Apache-2.0
#include "train/rank_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string_view>

#include "base/config_keys.h"
#include "base/error.h"
#include "base/features.h"
#include "train/model_setup.h"
#include "train/text_identity.h"

namespace saturate::train {
namespace {

// They decide how fast a rank works or what it prints, never what is computed: hosts of one job may
// have different numbers of cores. train.device is compared by its kind.
constexpr std::array<std::string_view, 4> kMayDiffer = {"quiet", "data.workers", "data.prefetch",
                                                        "train.device"};

// They choose another implementation or another order of sums, or another protocol of NCCL, which
// must be one for all.
constexpr std::array kVariables = {"SATURATE_MATMUL",
                                   "OPENBLAS_CORETYPE",
                                   "NVIDIA_TF32_OVERRIDE",
                                   "CUBLAS_WORKSPACE_CONFIG",
                                   "CUBLASLT_WORKSPACE_SIZE",
                                   "NCCL_ALGO",
                                   "NCCL_PROTO"};

constexpr size_t kNamesShown = 4, kValuesShown = 4;
constexpr int64_t kMostBytes = int64_t{16} << 20;  // of one rank's settings; really about 8 KiB

// The configuration with the preset's values written out, so that saying them is no difference.
RunConfig with_preset(const RunConfig& config) {
  const model::ModelConfig m = model_with(config);
  RunConfig c = config;
  ArchitectureConfig& to = c.model;
  to.d_model = m.d_model;
  to.encoder_layers = m.encoder_layers;
  to.decoder_layers = m.decoder_layers;
  to.heads = m.heads;
  to.kv_heads = m.kv_heads;
  to.ffn = m.ffn;
  to.max_positions = m.max_positions;
  to.dropout = m.dropout;
  to.attention_dropout = m.attention_dropout;
  to.activation_dropout = m.activation_dropout;
  to.norm = model::name_of(m.norm);
  to.norm_eps = m.norm_eps;
  to.norm_position = model::name_of(m.norm_position);
  to.activation = model::name_of(m.activation);
  to.gated = m.gated;
  to.mixers = m.mixers;
  to.experts = m.experts;
  if (m.experts > 0) {
    to.experts_per_token = m.experts_per_token;
    to.expert_every = m.expert_every;
    to.expert_routing = model::name_of(m.expert_routing);
    to.capacity_factor = m.capacity_factor;
    to.router_aux_loss = m.router_aux_loss;
    to.router_z_loss = m.router_z_loss;
  }
  to.positions = model::name_of(m.positions);
  to.bias = m.biases;
  to.tie_embeddings = m.tied_output;
  c.data.vocab_size = vocabulary_size(config);
  c.data.max_length = longest_sentence(config);
  return c;
}

std::string packed(const Settings& settings) {
  std::string bytes;
  for (const auto& [name, value] : settings) {
    bytes += name;
    bytes += '\0';
    bytes += value;
    bytes += '\0';
  }
  return bytes;
}

Settings unpacked(const std::string& bytes) {
  Settings settings;
  const auto text = [&bytes](size_t& at) {
    const size_t end = std::min(bytes.find('\0', at), bytes.size());
    std::string part = bytes.substr(at, end - at);
    at = std::min(end + 1, bytes.size());
    return part;
  };
  for (size_t at = 0; at < bytes.size();) {
    std::string name = text(at), value = text(at);
    settings.emplace_back(std::move(name), std::move(value));
  }
  return settings;
}

// Collective: the text of rank `root` on every rank.
std::string from_rank(int root, std::string text, parallel::Communicator& ranks) {
  auto bytes = static_cast<int64_t>(text.size());
  ranks.broadcast(&bytes, sizeof bytes, root);
  if (bytes < 0 || bytes > kMostBytes)
    throw Error(Errc::collective, "ranks",
                fmt::format("rank {} sent no settings; start the same program on all ranks", root));
  text.resize(static_cast<size_t>(bytes));
  if (bytes > 0) ranks.broadcast(text.data(), bytes, root);
  return text;
}

// "0-3, 7"
std::string range_text(const std::vector<size_t>& ranks) {
  std::string out;
  for (size_t i = 0, end = 0; i < ranks.size(); i = end) {
    end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", ranks[i]);
    if (end - i > 1) out += fmt::format("-{}", ranks[end - 1]);
  }
  return out;
}

// "0.001 on ranks 0-2, 0.002 on rank 3"
std::string who_has_what(const std::vector<std::pair<std::string, std::vector<size_t>>>& values) {
  std::string out;
  for (size_t i = 0; i < std::min(values.size(), kValuesShown); ++i) {
    const auto& [value, ranks] = values[i];
    out +=
        fmt::format("{}{:.100} on rank{} {}", i == 0 ? "" : ", ", value.empty() ? "unset" : value,
                    ranks.size() == 1 ? "" : "s", range_text(ranks));
  }
  if (values.size() > kValuesShown)
    out += fmt::format(", and {} more values", values.size() - kValuesShown);
  return out;
}

}  // namespace

Settings settings_of(const RunConfig& config, Device device) {
  Settings settings{{"version of the program", SATURATE_VERSION},
                    {"kind of device", device.is_cuda() ? "cuda" : "cpu"}};
  RunConfig resolved = with_preset(config);
  const DType type = resolve_precision(config.train.precision, device);
  if (config.train.precision != "bf16" && !rounds_operands(config.train.precision))
    resolved.train.precision = name_of(type);
  for (const config::Key& key : config::keys()) {
    if (std::ranges::find(kMayDiffer, key.name) != kMayDiffer.end()) continue;
    settings.emplace_back(key.name, value_text(key, resolved));
  }
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    settings.emplace_back(fmt::format("environment variable {}", name), value ? value : "");
  }
  for (const auto* files : {&config.data.train, &config.data.valid}) {
    for (const std::string& path : *files)
      settings.emplace_back("text of " + path, fingerprint_of_file(path));
  }
  return settings;
}

Settings plan_of(const Corpora& corpora, const FittedBatch& fitted) {
  return {{"source tokenizer", fmt::format("{:016x}", corpora.source.fingerprint())},
          {"target tokenizer", fmt::format("{:016x}", corpora.target.fingerprint())},
          {"batch that fits",
           fmt::format("{} x {} target and {} source tokens, {} sequences, {} units computed again",
                       fitted.batch.accumulate, fitted.rows.shape.target_rows,
                       fitted.rows.shape.source_rows, fitted.rows.shape.sequences,
                       fitted.recompute_units.value_or(-1))},
          {"longest sentence",
           fmt::format("{} source and {} target tokens", fitted.rows.shape.max_source,
                       fitted.rows.shape.max_target)}};
}

std::string disagreement(const std::vector<Settings>& of_rank) {
  // Names in the order of their first appearance; a rank without one has the value "".
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> values;
  for (const Settings& settings : of_rank) {
    for (const auto& [name, value] : settings)
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    values.emplace_back(settings.begin(), settings.end());
  }
  std::string text;
  size_t different = 0;
  for (const std::string& name : names) {
    std::vector<std::pair<std::string, std::vector<size_t>>> found;
    for (size_t rank = 0; rank < values.size(); ++rank) {
      const auto it = values[rank].find(name);
      const std::string value = it == values[rank].end() ? "" : it->second;
      auto same = std::ranges::find(found, value, [](const auto& f) { return f.first; });
      if (same == found.end()) same = found.insert(found.end(), {value, {}});
      same->second.push_back(rank);
    }
    if (found.size() == 1) continue;
    if (++different <= kNamesShown)
      text += fmt::format("{}{} is {}", text.empty() ? "" : "; ", name, who_has_what(found));
  }
  if (different > kNamesShown) text += fmt::format("; and {} more differ", different - kNamesShown);
  return text;
}

void require_agreement(const Settings& mine, parallel::Communicator& ranks) {
  if (ranks.size() == 1) return;
  const std::string own = packed(mine);
  const std::string first = from_rank(0, own, ranks);
  if (ranks.all_reduce_max(own == first ? 0 : 1) == 0) return;
  std::vector<Settings> all;
  for (int rank = 0; rank < ranks.size(); ++rank)
    all.push_back(unpacked(from_rank(rank, own, ranks)));
  throw Error(
      Errc::invalid_argument, "ranks",
      fmt::format("the ranks of this job do not train the same: {}. Start all of them with "
                  "one command, the same files and the same environment (only {} and the "
                  "number of the device may differ)",
                  disagreement(all), fmt::join(kMayDiffer.begin(), kMayDiffer.end() - 1, ", ")));
}

}  // namespace saturate::train
