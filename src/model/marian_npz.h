// SPDX-License-Identifier: Apache-2.0
// Folders of models as Marian's own program writes them: NAME.npz with "special:model.yml" in it, and
// vocabularies in SentencePiece's format or as .yml.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/hf_weights.h"
#include "model/model_config.h"
#include "model/safetensors.h"

namespace saturate::model {

// Whether a folder has such a file and no config.json.
bool is_marian_folder(const std::string& folder);

struct MarianFiles {
  std::string weights;
  // Of source and target, as decoder.yml names them or by their own names; empty where neither says.
  std::vector<std::string> vocabularies;
};

// Paths in the folder. Errors: invalid_argument where several .npz are there and none is named;
// those of parse_flat_yaml.
MarianFiles marian_files(const std::string& folder);

// Pieces by id of a vocabulary .yml, without the row that Marian lacks. Errors: io, invalid_argument.
std::vector<std::string> read_marian_vocabulary(const std::string& path);

// What the tensors of such a file compute. Marian has no padding and starts a translation from zeros,
// so that the vocabularies have one row of zeros more, which starts and pads and is never chosen.
// Positions and the norms' epsilon are those of Marian's program; transformers' MarianMTModel has
// others, a little away (10000^(-2i/d) for 10000^(-i/(d/2-1)), 1e-5 for 1e-6).
// Errors: invalid_argument or unsupported, naming `where`, the option and its value.
ModelConfig marian_config(std::span<const TensorView> tensors, const std::string& where,
                          int64_t eos = 0);

// Which of its tensors holds which rows; as hf_tensor_mapping().
std::vector<TensorMapping> marian_mapping(std::span<const TensorView> tensors,
                                          const ModelConfig& config);

}  // namespace saturate::model
