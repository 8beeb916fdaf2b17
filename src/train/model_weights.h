// SPDX-License-Identifier: Apache-2.0
// A model's parameters as inference has them, without its text side.
#pragma once
#include <memory>
#include <string>

#include "model/adapter_folder.h"
#include "model/panel_file.h"
#include "model/transformer.h"

namespace saturate::train {

struct ModelWeights {
  std::shared_ptr<ParameterStore> store;
  std::shared_ptr<model::Transformer> transformer;
};

// Memory for a model on a device, and its tables; weights mean nothing yet. `precision`: as load_model() takes it. Errors:
// unsupported, out_of_memory.
ModelWeights make_weights(const model::ModelConfig& layout, Device device,
                          const std::string& precision);

// The weights of a folder, packed for the CPU: mapped where saturate panels has kept them, else read. Errors: those of
// make_weights() and model::load_weights().
ModelWeights read_on_cpu(const std::string& folder, const model::ModelConfig& layout,
                         const std::string& precision, const model::Adapter* adapter);

// Lays out the weights of a folder as read_on_cpu() would and keeps them for it (model/panel_file.h), once its checksums
// are right. Errors: those of both and of check_model_files(); invalid_argument for fp16 and for an adapter.
model::KeptPanels keep_panels(const std::string& folder, const std::string& precision);

}  // namespace saturate::train
