// SPDX-License-Identifier: Apache-2.0
// Model folders: config.json and model.safetensors, with Hugging Face's tensor names where a class
// of transformers computes the model (hf_config.h), our own names otherwise.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "model/model_config.h"
#include "ops/held_runs.h"

namespace saturate::model {

// One tensor of a model file and the rows of the parameter that it holds.
struct TensorMapping {
  std::string hf_name;
  std::vector<int64_t> hf_shape;
  std::string parameter;  // empty: a constant, for readers that miss it
  int64_t first_row = 0, rows = 0, cols = 1;
  bool transposed = false;           // the file has (cols, rows): Conv1D of GPT-2
  std::vector<std::string> aliases;  // other names under which files in the wild hold it
  bool sinusoids = false;            // the constant is the table of positions; otherwise zero
  // The parameter is scale * tensor + shift; the tensor's first skipped_rows rows have no place.
  float scale = 1.0f, shift = 0.0f;
  int64_t skipped_rows = 0;
  // The parameter's last rows that the tensor lacks, and what they hold.
  int64_t missing_rows = 0;
  float missing_value = 0.0f;
};

// Every tensor of a model folder as save_hf writes it; tensors of one parameter follow each other
// and cover its rows.
std::vector<TensorMapping> hf_tensor_mapping(const ModelConfig& config);
// Of an encoder_decoder under the names of Marian, Pegasus and BART, whether one of these computes it
// or not.
std::vector<TensorMapping> translator_tensor_mapping(const ModelConfig& config);
// The same for "model_type": "saturate": each parameter under its own name.
std::vector<TensorMapping> own_tensor_mapping(const ModelConfig& config);

// The mapping of a folder that is there, which says itself whose names it has.
std::vector<TensorMapping> tensor_mapping_of(const std::string& folder, const ModelConfig& config);

// Values of one parameter, fp32, row-major; must stay valid until the next call.
using GetParameter = std::function<std::span<const float>(const std::string& name)>;
// Called once for every parameter; the values live for the call only.
using SetParameter = std::function<void(const std::string& name, std::span<const float> values)>;

// One parameter that lies in the files as it is in memory, for who reads it in parts.
struct ParameterRows {
  int64_t rows = 0, cols = 0;
  // Rows [first, first + count) as floats, in `room` or where they lie; finite. Valid during the
  // call that was given this; from several threads. Errors: invalid_argument for what is not finite.
  std::function<const float*(int64_t first, int64_t count, float* room)> read;
};
// Takes a parameter so, or not (false): then SetParameter is called with it.
using TakeRows = std::function<bool(const std::string& name, const ParameterRows& rows)>;

// In which type weights are written, rounded to nearest even, and how large a file may become.
struct WeightFormat {
  std::string dtype = "F32";          // or "BF16", "F16"
  uint64_t shard_bytes = UINT64_MAX;  // of tensors; one that is larger has a file of its own
};

// Writes config.json, generation_config.json and model.safetensors into an existing folder, each file
// durable by itself; what needs several files is written as transformers' shards, with
// model.safetensors.index.json. Errors: io; invalid_argument when a span has not the parameter's size,
// or a value is beyond the type.
void save_hf(const std::string& folder, const ModelConfig& config, const TranslateConfig& translate,
             const GetParameter& get, const WeightFormat& format = {});

// The same in parts, for several processes and into a folder that appears as a whole: one of them
// writes config.json, generation_config.json and the head of model.safetensors; then each writes and
// syncs its share of the tensors, and asks `get` for the parameters in these alone.
void begin_hf(const std::string& folder, const ModelConfig& config,
              const TranslateConfig& translate);
void write_hf_share(const std::string& folder, const ModelConfig& config, const GetParameter& get,
                    Share share);

// Size of the model.safetensors that save_hf() writes.
uint64_t hf_weights_bytes(const ModelConfig& config);

// What config.json leaves to the weights: of an encoder_decoder a bias of the output, which is there
// when it is not zero, and an output apart from the embeddings (T5); of a decoder_only that says its
// output is the embedding an output that is another, which is then read, with a warning, as
// transformers does. Nothing where there are none yet. Errors: those of SafetensorsReader;
// unsupported for an output of its own in a class that has none.
void add_what_weights_say(const std::string& folder, ModelConfig& config);

// Whether `folder` holds every tensor of `config` in its shape, from the headers alone. Errors: as
// load_hf_weights.
void check_hf_weights(const std::string& folder, const ModelConfig& config);

// Reads the weights of `folder` (one file or shards; F32, F16, BF16, F64). Every tensor is checked
// against `config` before the first call of `set`, and nothing is allocated before the file is
// known to hold it. Buffers and tied copies are ignored; any other tensor without a place is an
// error. A parameter that `has` says yes to is known already and not read. `take` is asked first for each
// of the others that is stored as it is. Errors: invalid_argument naming file, tensor, shape given and shape needed, or the value
// that is not finite; io.
void load_hf_weights(const std::string& folder, const ModelConfig& config, const SetParameter& set,
                     const TakeRows& take = {},
                     const std::function<bool(const std::string& name)>& has = {});

}  // namespace saturate::model
