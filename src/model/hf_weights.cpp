// SPDX-License-Identifier: Apache-2.0
#include "model/hf_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/half.h"
#include "base/log.h"
#include "model/finite.h"
#include "model/generation_config.h"
#include "model/hf_config.h"
#include "model/marian_npz.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

std::vector<TensorSpec> tensor_specs(std::span<const TensorMapping> mappings,
                                     const std::string& dtype = "F32") {
  std::vector<TensorSpec> specs;
  for (const TensorMapping& m : mappings) specs.push_back({m.hf_name, dtype, m.hf_shape});
  return specs;
}

// dst (cols, rows) = src (rows, cols)^T, in tiles that stay in the first-level cache.
void transpose(std::span<const float> src, int64_t rows, int64_t cols, std::span<float> dst) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) {
          dst[static_cast<size_t>(c * rows + r)] = src[static_cast<size_t>(r * cols + c)];
        }
      }
    }
  }
}

// Tensors that files of transformers carry beside the parameters: attention masks and tables that
// are computed, and second names of tied tensors.
bool is_redundant(const std::string& name, const ModelConfig& config) {
  constexpr std::array<std::string_view, 5> kBuffers = {
      ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", ".embed_positions.weight",
      ".embed_positions.weights"};
  for (const std::string_view suffix : kBuffers) {
    if (name.ends_with(suffix)) return true;
  }
  if (name == "special:model.yml") return true;  // Marian's options, as text
  const bool table = name.ends_with("coder.embed_tokens.weight") || name == "model.shared.weight" ||
                     name == "shared.weight";
  return (table && config.shared_embeddings) || (name == "lm_head.weight" && config.tied_output);
}

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw Error(Errc::invalid_argument, "load", fmt::format("{}: {}", file, why));
}

// The tensor of each mapping, in their order. Every tensor of the file must have a place.
std::vector<const TensorView*> match(const SafetensorsReader& file, const ModelConfig& config,
                                     const std::vector<TensorMapping>& mappings) {
  std::vector<const TensorView*> found;
  std::set<std::string> used;
  for (const TensorMapping& m : mappings) {
    const TensorView* t = file.find(m.hf_name);
    for (size_t a = 0; t == nullptr && a < m.aliases.size(); ++a) t = file.find(m.aliases[a]);
    if (t == nullptr && !m.parameter.empty()) {
      refuse(file.path(),
             fmt::format("tensor \"{}\" {} is missing: the weights are not those of this "
                         "config.json",
                         m.hf_name, shape_text(m.hf_shape)));
    }
    if (t != nullptr && t->shape != m.hf_shape) {
      refuse(file.path(), fmt::format("tensor \"{}\" is {}, config.json asks for {}", t->name,
                                      shape_text(t->shape), shape_text(m.hf_shape)));
    }
    if (t != nullptr) used.insert(t->name);
    found.push_back(t);
  }
  for (const TensorView& t : file.tensors()) {
    if (!used.contains(t.name) && !is_redundant(t.name, config)) {
      refuse(file.path(), fmt::format("tensor \"{}\" {} has no place in the model of config.json",
                                      t.name, shape_text(t.shape)));
    }
  }
  return found;
}

void need_finite(std::span<const float> values, const TensorView& t, const std::string& file) {
  const size_t at = first_not_finite(values);
  if (at == values.size()) return;
  refuse(file, fmt::format("tensor \"{}\" holds {}: weights must be finite; the training that made "
                           "them diverged, so take a checkpoint from before that",
                           t.name, values[at]));
}

}  // namespace

// A folder says itself which names it has: what a class of transformers computes today may have
// been written under our own names before that class was known here.
std::vector<TensorMapping> tensor_mapping_of(const std::string& folder, const ModelConfig& config) {
  if (is_marian_folder(folder)) return marian_mapping(SafetensorsReader(folder).tensors(), config);
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const Json json = read_json_file(path);
  const bool own = JsonFields(json, "load", path).text("model_type") == "saturate";
  return own ? own_tensor_mapping(config) : hf_tensor_mapping(config);
}

uint64_t hf_weights_bytes(const ModelConfig& config) {
  return SafetensorsWriter::file_bytes(tensor_specs(hf_tensor_mapping(config)));
}

namespace {

std::string weights_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "model.safetensors").string();
}

void write_configs(const std::string& folder, const ModelConfig& config,
                   const TranslateConfig& translate, const std::string& dtype = "F32") {
  const std::filesystem::path root(folder);
  Json json = to_hf_config(config);
  if (json.find("torch_dtype") != nullptr && dtype != "F32")
    json["torch_dtype"] = dtype == "BF16" ? "bfloat16" : "float16";
  write_json_file((root / "config.json").string(), json);
  write_json_file((root / "generation_config.json").string(),
                  to_generation_config(config, translate));
}

// Who writes each tensor: those of one parameter go together, to who has the least so far.
std::vector<int> owners(std::span<const TensorMapping> mappings, int ranks) {
  std::vector<int64_t> load(static_cast<size_t>(ranks));
  std::vector<int> owner;
  for (size_t i = 0; i < mappings.size(); ++i) {
    const TensorMapping& m = mappings[i];
    const bool goes_on = i > 0 && !m.parameter.empty() && m.parameter == mappings[i - 1].parameter;
    const auto least = std::ranges::min_element(load) - load.begin();
    owner.push_back(goes_on ? owner.back() : static_cast<int>(least));
    load[static_cast<size_t>(owner.back())] += m.rows * m.cols;
  }
  return owner;
}

// Values in 16 bits. Errors: invalid_argument for one that is beyond them.
template <class Half>
std::span<const std::byte> rounded(const std::string& name, std::span<const float> values,
                                   Half (*convert)(float), std::vector<Half>& out) {
  out.clear();
  for (const float v : values) {
    out.push_back(convert(v));
    if (std::isfinite(to_float(out.back()))) continue;
    throw Error(
        Errc::invalid_argument, "save",
        fmt::format("tensor \"{}\" holds {}, which is beyond the type; choose another --dtype",
                    name, v));
  }
  return std::as_bytes(std::span<const Half>(out));
}

void write_tensors(SafetensorsWriter& writer, std::span<const TensorMapping> mappings,
                   const GetParameter& get, Share share, const std::string& dtype = "F32") {
  const std::vector<int> owner = owners(mappings, share.ranks);
  std::vector<float> scratch;
  std::vector<Bf16> bf16;
  std::vector<F16> f16;
  std::span<const float> values;
  std::string held;
  for (size_t i = 0; i < mappings.size(); ++i) {
    if (owner[i] != share.rank) continue;
    const TensorMapping& m = mappings[i];
    const auto write = [&](std::span<const float> v) {
      writer.write_at(i, 0,
                      dtype == "BF16"  ? rounded(m.hf_name, v, to_bf16, bf16)
                      : dtype == "F16" ? rounded(m.hf_name, v, to_f16, f16)
                                       : std::as_bytes(v));
    };
    const auto size = static_cast<size_t>(m.rows * m.cols);
    if (m.parameter.empty()) {
      if (m.sinusoids) {
        scratch = sinusoidal_positions(m.rows, m.cols);
      } else {
        scratch.assign(size, 0.0f);
      }
      write(scratch);
      continue;
    }
    if (m.parameter != held) values = get(held = m.parameter);
    const auto first = static_cast<size_t>(m.first_row * m.cols);
    if (values.size() < first + size) {
      throw Error(Errc::invalid_argument, "save",
                  fmt::format("parameter {} was given {} values, {} are needed", m.parameter,
                              values.size(), first + size));
    }
    const std::span<const float> part = values.subspan(first, size);
    if (m.scale != 1.0f || m.shift != 0.0f || m.skipped_rows > 0) {
      scratch.assign(static_cast<size_t>(m.skipped_rows * m.cols), 0.0f);
      for (const float v : part) scratch.push_back((v - m.shift) / m.scale);
      write(scratch);
    } else if (m.transposed) {
      scratch.resize(size);
      transpose(part, m.rows, m.cols, scratch);
      write(scratch);
    } else {
      write(part);
    }
  }
  writer.commit();
}

}  // namespace

void save_hf(const std::string& folder, const ModelConfig& config, const TranslateConfig& translate,
             const GetParameter& get, const WeightFormat& format) {
  const std::vector<TensorMapping> mappings = hf_tensor_mapping(config);
  const std::vector<TensorSpec> specs = tensor_specs(mappings, format.dtype);
  const auto bytes_of = [](const TensorSpec& t) {
    uint64_t bytes = safetensors_element_bytes(t.dtype);
    for (const int64_t size : t.shape) bytes *= static_cast<uint64_t>(size);
    return bytes;
  };
  std::vector<size_t> begins{0};  // of the shards
  uint64_t total = 0, in_shard = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const uint64_t bytes = bytes_of(specs[i]);
    if (in_shard > 0 && bytes > format.shard_bytes - std::min(in_shard, format.shard_bytes)) {
      begins.push_back(i);
      in_shard = 0;
    }
    in_shard += bytes;
    total += bytes;
  }
  const size_t shards = begins.size();
  begins.push_back(specs.size());
  Json places = Json::Object{};
  for (size_t s = 0; s < shards; ++s) {
    const std::string name = shards == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards);
    const size_t first = begins[s], count = begins[s + 1] - first;
    SafetensorsWriter writer((std::filesystem::path(folder) / name).string(),
                             {specs.begin() + static_cast<ptrdiff_t>(first),
                              specs.begin() + static_cast<ptrdiff_t>(first + count)});
    write_tensors(writer, std::span(mappings).subspan(first, count), get, {}, format.dtype);
    for (size_t i = first; i < first + count; ++i) places.add(specs[i].name, name);
  }
  if (shards > 1) {
    write_json_file(
        (std::filesystem::path(folder) / "model.safetensors.index.json").string(),
        Json{{"metadata", Json{{"total_size", total}}}, {"weight_map", std::move(places)}});
  }
  write_configs(folder, config, translate, format.dtype);
}

void begin_hf(const std::string& folder, const ModelConfig& config,
              const TranslateConfig& translate) {
  SafetensorsWriter::begin(weights_path(folder), tensor_specs(hf_tensor_mapping(config)));
  write_configs(folder, config, translate);
}

void write_hf_share(const std::string& folder, const ModelConfig& config, const GetParameter& get,
                    Share share) {
  const std::vector<TensorMapping> mappings = hf_tensor_mapping(config);
  SafetensorsWriter writer(weights_path(folder), tensor_specs(mappings), DurableFile::Join{});
  write_tensors(writer, mappings, get, share);
}

// Files may hold an output that differs from the embedding though config.json says that they are one.
void untie_what_differs(const SafetensorsReader& file, ModelConfig& config) {
  const TensorView* output = file.find("lm_head.weight");
  const TensorView* table = nullptr;
  for (const char* name : {"model.embed_tokens.weight", "transformer.wte.weight", "wte.weight"})
    if (table == nullptr) table = file.find(name);
  if (output == nullptr || table == nullptr) return;
  if (output->dtype == table->dtype && output->bytes == table->bytes &&
      std::memcmp(output->data, table->data, table->bytes) == 0)
    return;
  config.tied_output = false;
  if (const auto why = hf_refusal(config)) {
    throw Error(
        Errc::unsupported, "load",
        fmt::format("{}: \"lm_head.weight\" is not \"{}\", and {}; leave it out of the file "
                    "if tie_word_embeddings of config.json is right",
                    file.path(), table->name, *why));
  }
  log_warning(
      fmt::format("{}: \"lm_head.weight\" is not \"{}\" though config.json has "
                  "tie_word_embeddings true; both are read, as transformers does",
                  file.path(), table->name));
}

void add_what_weights_say(const std::string& folder, ModelConfig& config) {
  const bool language_model = config.kind != ModelKind::encoder_decoder;
  if ((language_model && !config.tied_output) || !holds_weights(folder)) return;
  const SafetensorsReader file(folder);
  if (language_model) return untie_what_differs(file, config);
  const TensorView* bias = file.find("final_logits_bias");
  if (bias != nullptr && bias->elements() == config.vocab_target) {
    std::vector<float> values(static_cast<size_t>(bias->elements()));
    read_floats(*bias, 0, values);
    config.output_bias = std::ranges::any_of(values, [](float v) { return v != 0.0f; });
  }
  if (config.positions == PositionKind::relative && file.find("lm_head.weight") != nullptr)
    config.tied_output = false;
}

void check_hf_weights(const std::string& folder, const ModelConfig& config) {
  match(SafetensorsReader(folder), config, tensor_mapping_of(folder, config));
}

namespace {

// Where the tensors of one parameter are: mappings and what they found.
struct Pieces {
  std::span<const TensorMapping> mappings;
  std::span<const TensorView* const> tensors;
  const std::string& file;

  bool as_they_are() const {
    return std::ranges::all_of(mappings, [](const TensorMapping& m) {
      return !m.transposed && m.scale == 1.0f && m.shift == 0.0f && m.missing_rows == 0;
    });
  }

  const float* read(int64_t first, int64_t count, float* room) const {
    for (size_t i = 0; i < mappings.size(); ++i) {
      const TensorMapping& m = mappings[i];
      const TensorView& t = *tensors[i];
      const int64_t begin = std::max(first, m.first_row);
      const int64_t end = std::min(first + count, m.first_row + m.rows);
      if (begin >= end) continue;
      const int64_t at = (begin - m.first_row + m.skipped_rows) * m.cols;
      const auto size = static_cast<size_t>((end - begin) * m.cols);
      const std::byte* const there = t.data + static_cast<size_t>(at) * sizeof(float);
      if (t.dtype == "F32" && end - begin == count &&
          reinterpret_cast<uintptr_t>(there) % alignof(float) == 0) {
        const auto* const values = reinterpret_cast<const float*>(there);
        need_finite({values, size}, t, file);
        return values;
      }
      const std::span<float> part(room + (begin - first) * m.cols, size);
      read_floats(t, at, part);
      need_finite(part, t, file);
    }
    return room;
  }
};

}  // namespace

void load_hf_weights(const std::string& folder, const ModelConfig& config, const SetParameter& set,
                     const TakeRows& take,
                     const std::function<bool(const std::string& name)>& has) {
  const SafetensorsReader file(folder);
  const std::vector<TensorMapping> mappings = tensor_mapping_of(folder, config);
  const std::vector<const TensorView*> tensors = match(file, config, mappings);
  std::vector<float> values, scratch;
  for (size_t begin = 0, end = 0; begin < mappings.size(); begin = end) {
    const std::string& name = mappings[begin].parameter;
    for (end = begin + 1; end < mappings.size() && mappings[end].parameter == name;) ++end;
    if (name.empty() || (has && has(name))) continue;
    const std::span<const TensorMapping> own = std::span(mappings).subspan(begin, end - begin);
    const Pieces pieces{own, std::span(tensors).subspan(begin, end - begin), file.path()};
    const int64_t rows = own.back().first_row + own.back().rows, cols = own.back().cols;
    // What has been read is not needed a second time: the file does not stay in memory beside the model.
    const auto release = [&] {
      for (const TensorView* t : pieces.tensors)
        if (t != nullptr) file.release(*t);
    };
    if (take && pieces.as_they_are() &&
        take(name, {rows, cols, [&](int64_t first, int64_t count, float* room) {
                      return pieces.read(first, count, room);
                    }})) {
      release();
      continue;
    }
    values.resize(static_cast<size_t>(rows * cols));
    for (size_t i = begin; i < end; ++i) {
      const TensorMapping& m = mappings[i];
      const int64_t rows_there = m.rows - m.missing_rows;
      const auto size = static_cast<size_t>(rows_there * m.cols);
      const std::span<float> part =
          std::span<float>(values).subspan(static_cast<size_t>(m.first_row * m.cols), size);
      std::fill_n(part.end(), m.missing_rows * m.cols, m.missing_value);
      if (m.transposed) {
        scratch.resize(size);
        read_floats(*tensors[i], 0, scratch);
        transpose(scratch, m.cols, rows_there, part);
      } else {
        read_floats(*tensors[i], m.skipped_rows * m.cols, part);
      }
      if (m.scale != 1.0f || m.shift != 0.0f)
        for (float& v : part) v = m.scale * v + m.shift;
      need_finite(part, *tensors[i], file.path());
    }
    set(name, values);
    release();
  }
}

}  // namespace saturate::model
