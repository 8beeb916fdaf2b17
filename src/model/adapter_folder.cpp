// SPDX-License-Identifier: Apache-2.0
#include "model/adapter_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "kernels/adapters/keep_columns.h"
#include "kernels/gemm/matmul.h"
#include "model/finite.h"

namespace saturate::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.", kWeight = ".weight";

std::string last_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

std::string projection_of(const TensorMapping& m) {
  return m.parameter.substr(0, m.parameter.size() - kWeight.size());
}

// Whether mixers declare this tensor's parameter as a projection (Declaration::linear), beside which
// an adapter can lie.
bool is_projection(const TensorMapping& m) {
  if (!m.parameter.ends_with(kWeight) || m.hf_shape.size() != 2) return false;
  const std::string name = projection_of(m);
  if (name.find(".layers.") == std::string::npos || name.find(".experts.") != std::string::npos)
    return false;
  constexpr std::string_view kLast[] = {"qkv", "q", "kv", "in", "out"};
  return std::ranges::find(kLast, last_name(name)) != std::end(kLast);
}

// Appends a part; those of one projection follow each other in a mapping.
void add_part(Lora& lora, const TensorMapping& m, int64_t rank, float scale) {
  const std::string projection = projection_of(m);
  if (lora.linears.empty() || lora.linears.back().projection != projection)
    lora.linears.push_back({.projection = projection, .columns = m.cols, .parts = {}});
  lora.linears.back().parts.push_back({.module = module_of(m.hf_name),
                                       .first_row = m.first_row,
                                       .rows = m.rows,
                                       .rank = rank,
                                       .scale = scale,
                                       .fan_in_fan_out = m.transposed});
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "adapter", what);
}

std::string tensor_name(const std::string& module, char which) {
  return fmt::format("{}{}.lora_{}.weight", kPrefix, module, which);
}

}  // namespace

bool is_adapter_folder(const std::string& folder) {
  std::error_code unknown;
  return fs::exists(folder + "/adapter_config.json", unknown) &&
         !fs::exists(folder + "/config.json", unknown);
}

std::string module_of(const std::string& tensor) {
  if (!tensor.ends_with(kWeight)) return {};
  return tensor.substr(0, tensor.size() - kWeight.size());
}

Lora lora_for(const LoraRequest& request, std::span<const TensorMapping> model) {
  AdapterConfig config;
  config.rank = request.rank;
  config.alpha = request.alpha;
  config.rank_stabilised = request.rank_stabilised;
  Lora lora{.linears = {},
            .dropout = static_cast<float>(request.dropout),
            .rank = request.rank,
            .alpha = request.alpha,
            .rank_stabilised = request.rank_stabilised,
            .base = request.base};
  const bool all = request.targets == std::vector<std::string>{"all-linear"};
  std::set<std::string> used, choices;
  for (const TensorMapping& m : model)
    if (is_projection(m)) choices.insert(last_name(module_of(m.hf_name)));
  for (const TensorMapping& m : model) {
    const std::string module = module_of(m.hf_name);
    if (m.parameter.empty() || module.empty()) continue;
    bool wanted = all && is_projection(m);
    for (const std::string& target : request.targets) {
      if (!is_module(module, target)) continue;
      used.insert(target);
      wanted = true;
    }
    if (!wanted) continue;
    if (!is_projection(m)) {
      refuse(
          fmt::format("lora.targets has {}, which no adapter can lie beside: only projections of "
                      "layers, here {}",
                      module, fmt::join(choices, ", ")));
    }
    add_part(lora, m, config.rank, config.scale_of(module, config.rank));
  }
  const std::vector<std::string_view> names(choices.begin(), choices.end());
  for (const std::string& target : request.targets) {
    if (all || used.contains(target)) continue;
    refuse(
        fmt::format("lora.targets has {:.100}, and no module of this model is called so: it has "
                    "{}, or all-linear "
                    "for all of them{}",
                    target, fmt::join(choices, ", "), did_you_mean(target, names)));
  }
  if (lora.empty())
    refuse("lora.targets names nothing; give all-linear, or names of modules such as q_proj");
  return lora;
}

void Adapter::merge(const std::string& parameter, std::span<float> weights) const {
  if (!parameter.ends_with(kWeight)) return;
  const LoraLinear* l = lora.of(parameter.substr(0, parameter.size() - kWeight.size()));
  if (l == nullptr) return;
  const float* a = values.at(l->a_name()).data();
  for (size_t i = 0; i < l->parts.size(); ++i) {
    const LoraPart& p = l->parts[i];
    SAT_ASSERT((p.first_row + p.rows) * l->columns <= std::ssize(weights));
    kernels::matmul(Context{}, {.a = values.at(l->b_name(i)).data(),
                                .b = a,
                                .d = weights.data() + p.first_row * l->columns,
                                .m = p.rows,
                                .n = l->columns,
                                .k = p.rank,
                                .lda = p.rank,
                                .ldb = l->columns,
                                .ldd = l->columns,
                                .alpha = p.scale,
                                .beta = 1.0f});
    a += p.rank * l->columns;
  }
}

Adapter side_by_side(std::span<const Adapter> adapters) {
  if (std::ssize(adapters) > kernels::kMostAdapters) {
    refuse(fmt::format("{} adapters are given, and at most {} lie side by side", adapters.size(),
                       kernels::kMostAdapters));
  }
  Adapter all;
  all.lora.side_by_side = static_cast<int32_t>(adapters.size());
  for (size_t i = 0; i < adapters.size(); ++i) {
    const Adapter& one = adapters[i];
    for (const LoraLinear& l : one.lora.linears) {
      auto at = std::ranges::find(all.lora.linears, l.projection, &LoraLinear::projection);
      if (at == all.lora.linears.end()) {
        all.lora.linears.push_back({.projection = l.projection, .columns = l.columns, .parts = {}});
        at = all.lora.linears.end() - 1;
      }
      const std::vector<float>& a = one.values.at(l.a_name());
      std::vector<float>& together = all.values[l.a_name()];
      together.insert(together.end(), a.begin(), a.end());
      for (size_t p = 0; p < l.parts.size(); ++p) {
        all.values[at->b_name(at->parts.size())] = one.values.at(l.b_name(p));
        at->parts.push_back(l.parts[p]);
        at->parts.back().adapter = static_cast<int32_t>(i);
      }
    }
  }
  return all;
}

Adapter parse_adapter(const AdapterConfig& config, std::span<const TensorView> tensors,
                      std::span<const TensorMapping> model, const std::string& where) {
  std::map<std::string_view, const TensorView*> left;
  for (const TensorView& t : tensors) left.emplace(t.name, &t);
  const auto take = [&](const std::string& name) -> const TensorView* {
    const auto at = left.find(name);
    if (at == left.end()) return nullptr;
    const TensorView* t = at->second;
    left.erase(at);
    return t;
  };
  Adapter adapter;
  adapter.lora.dropout = static_cast<float>(config.dropout);
  adapter.lora.rank = config.rank;
  adapter.lora.alpha = config.alpha;
  adapter.lora.rank_stabilised = config.rank_stabilised;
  adapter.lora.base = config.base;
  const auto append = [&](const TensorView& t, const std::string& parameter) {
    std::vector<float>& values = adapter.values[parameter];
    const size_t before = values.size();
    values.resize(before + static_cast<size_t>(t.elements()));
    const std::span<float> mine = std::span(values).subspan(before);
    read_floats(t, 0, mine);
    if (const size_t at = first_not_finite(mine); at < mine.size())
      refuse(fmt::format("{}: tensor \"{}\" holds {}: weights must be finite", where, t.name,
                         mine[at]));
  };
  for (const TensorMapping& m : model) {
    if (!is_projection(m)) continue;
    const TensorView *a = nullptr, *b = nullptr;
    std::vector<std::string> names = m.aliases;
    names.insert(names.begin(), m.hf_name);
    std::string module;
    for (size_t n = 0; n < names.size() && a == nullptr && b == nullptr; ++n) {
      module = module_of(names[n]);
      a = take(tensor_name(module, 'A')), b = take(tensor_name(module, 'B'));
    }
    if (a == nullptr && b == nullptr) continue;
    if (a == nullptr || b == nullptr)
      refuse(fmt::format("{}: \"{}\" has no partner {}", where, (a ? a : b)->name,
                         tensor_name(module, a ? 'B' : 'A')));
    const int64_t rank = config.rank_of(module);
    const auto check = [&](const TensorView& t, std::vector<int64_t> shape) {
      if (t.shape == shape) return;
      refuse(
          fmt::format("{}: tensor \"{}\" is {}; its adapter_config.json and the model ask for {}",
                      where, t.name, shape_text(t.shape), shape_text(shape)));
    };
    check(*a, {rank, m.cols});
    check(*b, {m.rows, rank});
    add_part(adapter.lora, m, rank, config.scale_of(module, rank));
    const LoraLinear& l = adapter.lora.linears.back();
    append(*a, l.a_name());
    append(*b, l.b_name(l.parts.size() - 1));
  }
  if (!left.empty()) {
    const std::string name(left.begin()->first);
    const bool known = name.find(".lora_A.weight") != std::string::npos ||
                       name.find(".lora_B.weight") != std::string::npos;
    refuse(fmt::format("{}: tensor \"{}\" {} has no place: {}", where, name,
                       shape_text(left.begin()->second->shape),
                       known
                           ? "the model has no projection of this name, so that the adapter is of "
                             "another model, or of its embedding, output or experts, which have "
                             "none here"
                           : "Saturate reads lora_A and lora_B of linear modules alone"));
  }
  if (adapter.lora.empty()) refuse(where + ": no tensor in it; it adapts nothing");
  return adapter;
}

Adapter read_adapter(const std::string& folder, const std::string& base, const ModelConfig& model) {
  const AdapterConfig config = read_adapter_config(folder);
  const std::string path = folder + "/adapter_model.safetensors";
  if (!fs::exists(path)) {
    throw Error(
        Errc::io, "adapter",
        fmt::format("{} is missing{}", path,
                    fs::exists(folder + "/adapter_model.bin")
                        ? "; adapter_model.bin is a pickle: open it in PEFT and save it with "
                          "save_pretrained(), which writes safetensors"
                        : ""));
  }
  const SafetensorsReader file(path);
  return parse_adapter(config, file.tensors(), tensor_mapping_of(base, model), path);
}

namespace {

// Calls take(name, shape, parameter, first element) for every tensor of the file, in its order.
template <class Take>
void for_tensors(const Lora& lora, const Take& take) {
  for (const LoraLinear& l : lora.linears) {
    int64_t row = 0;
    for (size_t i = 0; i < l.parts.size(); ++i) {
      const LoraPart& p = l.parts[i];
      take(tensor_name(p.module, 'A'), std::vector{p.rank, l.columns}, l.a_name(), row * l.columns);
      take(tensor_name(p.module, 'B'), std::vector{p.rows, p.rank}, l.b_name(i), int64_t{0});
      row += p.rank;
    }
  }
}

std::vector<TensorSpec> tensor_specs(const Lora& lora) {
  std::vector<TensorSpec> specs;
  for_tensors(lora, [&](std::string name, std::vector<int64_t> shape, const std::string&, int64_t) {
    specs.push_back({std::move(name), "F32", std::move(shape)});
  });
  return specs;
}

}  // namespace

void save_adapter(const std::string& folder, const ModelConfig& config, const GetParameter& get) {
  SafetensorsWriter writer(folder + "/adapter_model.safetensors", tensor_specs(config.lora));
  for_tensors(config.lora, [&](const std::string&, const std::vector<int64_t>& shape,
                               const std::string& parameter, int64_t first) {
    const auto count = static_cast<size_t>(shape[0] * shape[1]);
    const std::span<const float> values = get(parameter).subspan(static_cast<size_t>(first), count);
    require_finite(parameter, DType::f32, values.data(), values.size());
    writer.write(values);
  });
  writer.commit();
  const bool translates = config.kind == ModelKind::encoder_decoder;
  write_json_file(folder + "/adapter_config.json",
                  to_adapter_config(config.lora, hf_tensor_mapping(config),
                                    translates ? "SEQ_2_SEQ_LM" : "CAUSAL_LM"));
}

uint64_t adapter_bytes(const Lora& lora) {
  return SafetensorsWriter::file_bytes(tensor_specs(lora));
}

}  // namespace saturate::model
