// SPDX-License-Identifier: Apache-2.0
#include "train/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"
#include "model/marian_npz.h"
#include "model/safetensors.h"
#include "model/transformer.h"
#include "train/run_settings.h"
#include "train/whole_folder.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOp = "quantize";
constexpr const char* kKey = "quantization_config";

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, kOp, what);
}

bool holds_weights_file(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name.ends_with(".bin");
}

enum class Outputs : uint8_t { rows, columns };  // where a file has them

// Names of the tensors to round. A transposed one has its outputs in columns.
std::map<std::string, Outputs> matrices_of(const model::ModelConfig& config) {
  ParameterStore layout({}, DType::f32);  // places alone
  const model::Transformer declared(config, layout);
  std::map<std::string, Outputs> found;
  std::vector<model::TensorMapping> mappings = model::own_tensor_mapping(config);
  if (!model::hf_refusal(config)) {
    std::ranges::copy(model::hf_tensor_mapping(config), std::back_inserter(mappings));
  }
  for (const model::TensorMapping& m : mappings) {
    const ParameterId id = m.parameter.empty() ? ParameterId{} : layout.find(m.parameter);
    if (id.index < 0 || layout.spec(id).wide || layout.spec(id).rows < 2) continue;
    const Outputs outputs = m.transposed ? Outputs::columns : Outputs::rows;
    found.emplace(m.hf_name, outputs);
    for (const std::string& alias : m.aliases) found.emplace(alias, outputs);
  }
  return found;
}

struct Rounded {
  std::vector<int8_t> values;
  std::vector<float> scales;
};

Rounded round(const model::TensorView& t, Outputs outputs) {
  const auto rows = static_cast<size_t>(t.shape[0]), columns = static_cast<size_t>(t.shape[1]);
  std::vector<float> w(rows * columns);
  model::read_floats(t, 0, w);
  const bool by_row = outputs == Outputs::rows;
  Rounded r{std::vector<int8_t>(w.size()), std::vector<float>(by_row ? rows : columns)};
  const auto scale_of = [&](size_t i) -> float& {
    return r.scales[by_row ? i / columns : i % columns];
  };
  for (size_t i = 0; i < w.size(); ++i) {
    if (!std::isfinite(w[i])) refuse(fmt::format("tensor \"{}\" holds {}", t.name, w[i]));
    scale_of(i) = std::max(scale_of(i), std::abs(w[i]));
  }
  // What is below the least normal number would divide to more than 127 steps: it counts as zeros.
  for (float& s : r.scales) s = s / 127.0f >= 1.17549435e-38f ? s / 127.0f : 0.0f;
  for (size_t i = 0; i < w.size(); ++i) {
    const float scale = scale_of(i);
    r.values[i] = scale == 0 ? int8_t{0} : static_cast<int8_t>(std::nearbyint(w[i] / scale));
  }
  return r;
}

void write_weights(const model::SafetensorsReader& file, const model::ModelConfig& config,
                   const std::string& path, QuantizedFolder& result) {
  const std::map<std::string, Outputs> matrices = matrices_of(config);
  const auto outputs_of = [&](const model::TensorView& t) {
    const auto at = matrices.find(t.name);
    return t.shape.size() == 2 && at != matrices.end() ? &at->second : nullptr;
  };
  std::vector<model::TensorSpec> specs;
  for (const model::TensorView& t : file.tensors()) {
    const Outputs* const outputs = outputs_of(t);
    specs.push_back({t.name, outputs != nullptr ? "I8" : t.dtype, t.shape});
    if (outputs == nullptr) continue;
    ++result.matrices;
    std::vector<int64_t> shape = t.shape;
    shape[*outputs == Outputs::rows ? 1 : 0] = 1;
    specs.push_back({t.name + "_scale", "F32", shape});
  }
  if (result.matrices == 0) refuse(file.path() + " holds no matrix of the model to round");
  model::SafetensorsWriter writer(path, specs);
  for (const model::TensorView& t : file.tensors()) {
    if (const Outputs* const outputs = outputs_of(t)) {
      const Rounded r = round(t, *outputs);
      writer.write(std::as_bytes(std::span(r.values)));
      writer.write(r.scales);
      result.matrix_bytes += r.values.size();
      result.scale_bytes += r.scales.size() * sizeof(float);
    } else {
      result.kept_bytes += t.bytes;
      writer.write({t.data, t.bytes});
    }
  }
  writer.commit();
}

std::string config_path(const std::string& folder) {
  return (fs::path(folder) / "config.json").string();
}

}  // namespace

bool is_quantized(const std::string& folder) {
  if (model::is_marian_folder(folder)) return false;
  const Json json = read_json_file(config_path(folder));
  const std::string* const method = json[kKey]["quant_method"].if_string();
  return method != nullptr && *method == "saturate";
}

QuantizedFolder quantize_folder(const std::string& from, const std::string& to) {
  if (fs::exists(to)) refuse(to + " exists; give --out a folder that is not there yet");
  if (is_quantized(from)) refuse(from + " is quantized already; give the folder it was made from");
  if (model::is_marian_folder(from)) {
    refuse(from + " is a model of Marian; make a folder of it with saturate export --model " +
           from + " --out FOLDER, and give that");
  }
  const model::ModelConfig config = model::read_model_config(from);
  model::check_hf_weights(from, config);
  Json json = read_json_file(config_path(from));
  if (json.find(kKey) != nullptr) {
    refuse(from + " was quantized by another program; give a folder of F32, F16 or BF16 weights");
  }
  Json how = {{"quant_method", "saturate"}, {"bits", 8}};
  if (const TextForm text = text_form_of(from); !text.format.empty() && text.format != "auto")
    how.add("text", Json{{"format", text.format}, {"key", text.key}});
  json.add(kKey, std::move(how));
  QuantizedFolder result;
  for (const auto& entry : fs::directory_iterator(from)) {
    if (entry.path().extension() == ".safetensors") result.bytes_before += entry.file_size();
  }
  fs::path whole = fs::absolute(to).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "folder/"
  write_whole_folder(whole.string(), 0, [&](const std::string& folder) {
    for (const auto& entry : fs::directory_iterator(from)) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_regular_file() || holds_weights_file(name) || name == "manifest.json") continue;
      if (name != "config.json") fs::copy_file(entry.path(), fs::path(folder) / name);
    }
    write_json_file(config_path(folder), json);
    const std::string weights = (fs::path(folder) / "model.safetensors").string();
    write_weights(model::SafetensorsReader(from), config, weights, result);
    result.bytes_after = fs::file_size(weights);
  });
  return result;
}

}  // namespace saturate::train
