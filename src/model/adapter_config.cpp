// SPDX-License-Identifier: Apache-2.0
#include "model/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "model/adapter_folder.h"

namespace saturate::model {
namespace {

// Beyond any use, and small enough that no product of sizes overflows.
constexpr int64_t kMostRank = 1 << 16;
constexpr double kMostAlpha = 1e6;

// Fields that do not change what the tensors mean.
constexpr std::string_view kWithoutEffect[] = {"auto_mapping",
                                               "base_model_name_or_path",
                                               "revision",
                                               "task_type",
                                               "inference_mode",
                                               "peft_version",
                                               "target_modules",
                                               "exclude_modules",
                                               "layers_to_transform",
                                               "layers_pattern",
                                               "megatron_core",
                                               "fan_in_fan_out",  // the module itself decides
                                               "eva_config",
                                               "qalora_group_size",
                                               "runtime_config",
                                               "ephemeral_gpu_offload",
                                               "merge_weights"};

// What is refused where it is said, and why.
constexpr std::pair<std::string_view, const char*> kUnsupported[] = {
    {"use_dora", "DoRA has magnitudes beside the low-rank matrices"},
    {"modules_to_save", "whole modules were trained beside the adapter"},
    {"lora_bias", "its B has a bias"},
    {"layer_replication", "it repeats layers of the base"},
    {"trainable_token_indices", "rows of the embedding were trained beside the adapter"},
    {"target_parameters", "it adapts parameters that are no linear modules"},
    {"alora_invocation_tokens", "it applies from certain tokens on"},
    {"use_qalora", "QA-LoRA shares inputs in groups"},
    {"use_bdlora", "its matrices are block-diagonal"}};

bool is_empty(const Json& v) {
  const bool* flag = v.if_bool();
  const std::string* text = v.if_string();
  return v.is_null() || (flag && !*flag) || (text && text->empty()) ||
         ((v.if_array() || v.if_object()) && v.size() == 0);
}

[[noreturn]] void unsupported(const std::string& where, std::string_view field, const Json& value,
                              const std::string& why) {
  throw Error(Errc::unsupported, "adapter",
              fmt::format("{}: {} is {:.100}: {}; merge it into its base with PEFT "
                          "(merge_and_unload) and give that model",
                          where, field, value.dump(), why));
}

// A name of a module or the end of one; ^ before it: the whole name. PEFT takes any regular
// expression, of which these are the plain ones.
void check_pattern(const std::string& where, const char* field, const std::string& key) {
  const std::string_view name = std::string_view(key).substr(key.starts_with('^') ? 1 : 0);
  const bool plain = !name.empty() && std::ranges::all_of(name, [](char c) {
    return c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z');
  });
  if (plain) return;
  throw Error(Errc::unsupported, "adapter",
              fmt::format("{}: {} has {:.100}, a regular expression; write the modules' names, or "
                          "the ends of them, instead",
                          where, field, Json(key).dump()));
}

bool pattern_fits(const std::string& key, const std::string& module) {
  if (key.starts_with('^')) return std::string_view(key).substr(1) == module;
  return is_module(module, key);
}

template <class T>
const T* found(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module) {
  for (const auto& [key, value] : patterns)
    if (pattern_fits(key, module)) return &value;
  return nullptr;
}

double checked_alpha(const JsonFields& fields, std::string_view name, double alpha) {
  if (!(std::fabs(alpha) <= kMostAlpha))
    fields.fail(name,
                fmt::format("{} is no usual factor; it must lie within {:g}", alpha, kMostAlpha));
  return alpha;
}

int64_t checked_rank(const JsonFields& fields, std::string_view name, int64_t rank) {
  if (rank < 1 || rank > kMostRank)
    fields.fail(name, fmt::format("{} is no rank; it must lie between 1 and {}", rank, kMostRank));
  return rank;
}

}  // namespace

bool is_module(const std::string& module, std::string_view name) {
  if (!module.ends_with(name)) return false;
  return module.size() == name.size() || module[module.size() - name.size() - 1] == '.';
}

int64_t AdapterConfig::rank_of(const std::string& module) const {
  const int64_t* own = found(ranks, module);
  return own ? *own : rank;
}

float AdapterConfig::scale_of(const std::string& module, int64_t of_rank) const {
  const double* own = found(alphas, module);
  const auto r = static_cast<double>(of_rank);
  return static_cast<float>((own ? *own : alpha) / (rank_stabilised ? std::sqrt(r) : r));
}

AdapterConfig parse_adapter_config(const Json& json, const std::string& where) {
  if (json.if_object() == nullptr)
    throw Error(Errc::invalid_argument, "adapter", where + ": it is no JSON object");
  JsonFields f(json, "adapter", where);
  if (const std::string type = f.text("peft_type"); type != "LORA")
    unsupported(where, "peft_type", type, "Saturate reads LORA alone");
  AdapterConfig c;
  c.base = f.text_or("base_model_name_or_path", "");
  c.rank = checked_rank(f, "r", f.integer_or("r", c.rank));
  c.alpha = checked_alpha(f, "lora_alpha", f.number_or("lora_alpha", c.alpha));
  c.dropout = f.number_or("lora_dropout", 0);
  c.rank_stabilised = f.boolean_or("use_rslora", false);
  if (const std::string bias = f.text_or("bias", "none"); bias != "none")
    unsupported(where, "bias", bias, "biases of the base were trained beside the adapter");
  std::set<std::string_view> known(std::begin(kWithoutEffect), std::end(kWithoutEffect));
  known.insert({"peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias"});
  for (const char* field : {"rank_pattern", "alpha_pattern"}) {
    known.insert(field);
    const Json* patterns = json.find(field);
    if (patterns == nullptr || is_empty(*patterns)) continue;
    if (patterns->if_object() == nullptr) f.fail(field, "it is no object of names");
    JsonFields values(*patterns, "adapter", fmt::format("{}: {}", where, field));
    for (const Json::Member& m : *patterns->if_object()) {
      check_pattern(where, field, m.key);
      if (std::string_view(field) == "rank_pattern")
        c.ranks.emplace_back(m.key, checked_rank(values, m.key, values.integer(m.key)));
      else
        c.alphas.emplace_back(m.key, checked_alpha(values, m.key, values.number(m.key)));
    }
  }
  // Starts that take something out of the base's weights; the others draw A anew and are no matter.
  known.insert("init_lora_weights");
  if (const Json* start = json.find("init_lora_weights"); start && start->if_string()) {
    const std::string& name = *start->if_string();
    if (name != "gaussian" && name != "eva" && name != "orthogonal")
      unsupported(where, "init_lora_weights", *start, "it changes the base's weights");
  }
  for (const Json::Member& m : *json.if_object()) {
    if (known.contains(m.key) || is_empty(m.value)) continue;
    const auto why = std::ranges::find(kUnsupported, m.key, [](const auto& u) { return u.first; });
    unsupported(
        where, m.key, m.value,
        why == std::end(kUnsupported) ? "Saturate does not know what that means" : why->second);
  }
  return c;
}

AdapterConfig read_adapter_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "adapter_config.json").string();
  return parse_adapter_config(read_json_file(path), path);
}

Json to_adapter_config(const Lora& lora, std::span<const TensorMapping> model, const char* task) {
  std::set<std::string> adapted, names;
  bool conv1d = false;
  for (const LoraLinear& l : lora.linears) {
    for (const LoraPart& p : l.parts) {
      adapted.insert(p.module);
      conv1d = conv1d || p.fan_in_fan_out;
    }
  }
  // The end of a name stands for all modules that end so, where all of them are adapted.
  const auto last = [](const std::string& module) { return module.substr(module.rfind('.') + 1); };
  std::set<std::string> left_out;
  for (const TensorMapping& m : model) {
    const std::string module = module_of(m.hf_name);
    if (!adapted.contains(module)) left_out.insert(last(module));
  }
  for (const std::string& module : adapted)
    names.insert(left_out.contains(last(module)) ? module : last(module));
  Json::Array targets(names.begin(), names.end());
  return {{"peft_type", "LORA"},
          {"task_type", task},
          {"base_model_name_or_path", lora.base},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"lora_dropout", static_cast<double>(lora.dropout)},
          {"use_rslora", lora.rank_stabilised},
          {"target_modules", std::move(targets)},
          {"fan_in_fan_out", conv1d},
          {"bias", "none"},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"modules_to_save", nullptr},
          {"rank_pattern", Json::Object{}},
          {"alpha_pattern", Json::Object{}}};
}

}  // namespace saturate::model
