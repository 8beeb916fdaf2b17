// SPDX-License-Identifier: Apache-2.0
#include "train/model_weights.h"

#include "base/error.h"
#include "base/timed_part.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "model/folder_manifest.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "train/model_setup.h"
#include "train/quantize.h"

namespace saturate::train {
namespace {

using kernels::PackedType;

// On the CPU bf16 and int8 are of matrices alone: all else is computed in fp32.
DType compute_type(const std::string& precision, Device device) {
  if (precision == "bf16" && !device.is_cuda()) return DType::f32;
  if (rounds_operands(precision))
    throw Error(Errc::unsupported, "model",
                "precision " + precision + " is for training; give auto, fp32, bf16 or fp16");
  if (precision != "int8") return resolve_precision(precision, device);
  if (!device.is_cuda()) return DType::f32;
  throw Error(Errc::unsupported, "model",
              "precision int8 is for the CPU; give --device cpu, or another precision");
}

PackedType packed_type(const std::string& precision, const std::string& folder) {
  if (precision == "bf16") return PackedType::bf16;
  const bool int8 = precision == "int8" || (precision == "auto" && is_quantized(folder));
  return int8 ? PackedType::s8 : PackedType::f32;
}

// Whether rows are looked up in panels too, so that there are no masters of tables. What a quantized folder holds is what
// packing it gives, so lookups lose nothing by it; bf16 has tables too, as on a GPU: two bytes a parameter. Panels of fp32 are
// exact, but a row lies apart in them: where they are kept a start reads nothing, else masters are read anyway.
bool packs_tables(PackedType type, const std::string& folder, bool kept) {
  return type == PackedType::bf16 || (type == PackedType::f32 && kept) ||
         (type == PackedType::s8 && is_quantized(folder));
}

}  // namespace

ModelWeights make_weights(const model::ModelConfig& layout, Device device,
                          const std::string& precision) {
  const TimedPart part("device memory and tables");
  ModelWeights w{.store = std::make_shared<ParameterStore>(device, compute_type(precision, device)),
                 .transformer = {}};
  w.store->set_kernels(kernels::kernel_options_from_environment());
  w.transformer = std::make_shared<model::Transformer>(layout, *w.store);
  w.store->allocate(ParameterStore::Purpose::inference);
  w.transformer->make_tables(*w.store);
  return w;
}

// The first of the lists that multiply with a matrix packs it, so lists come after the weights. Those
// that lie in the files as in memory are packed as they are read, by all threads.
ModelWeights read_on_cpu(const std::string& folder, const model::ModelConfig& layout,
                         const std::string& precision, const model::Adapter* adapter) {
  const PackedType type = packed_type(precision, folder);
  const auto read = [&](const std::shared_ptr<const model::PanelFile>& panels) {
    ModelWeights w = make_weights(layout, Device{}, precision);
    w.store->pack(type, packs_tables(type, folder, panels != nullptr));
    model::load_weights(folder, layout, *w.store, adapter, panels);
    w.store->packed(w.transformer->output_weight());
    return w;
  };
  const bool plain = adapter == nullptr && layout.lora.empty();
  const auto panels = plain ? model::PanelFile::open(folder, layout, type) : nullptr;
  ModelWeights w = read(panels);
  // Norms and biases of a folder that was replaced meanwhile do not go with these panels.
  return panels == nullptr || panels->is_current() ? w : read(nullptr);
}

model::KeptPanels keep_panels(const std::string& folder, const std::string& precision) {
  if (precision == "fp16") {
    throw Error(Errc::invalid_argument, "panels",
                "the CPU does not compute in fp16; give --precision fp32, bf16 or int8");
  }
  const model::ModelConfig config = model::read_model_config(folder);
  model::check_hf_weights(folder, config);  // before room is made for what it claims
  if (!config.lora.empty()) {
    throw Error(Errc::invalid_argument, "panels",
                folder + " is an adapter; its base is read and merged at each start");
  }
  const model::PanelSource source = model::settled_source(folder, config);
  model::check_model_files(folder);
  ModelWeights w = make_weights(config, Device{}, precision);
  const PackedType type = packed_type(precision, folder);
  w.store->pack(type, packs_tables(type, folder, true));
  model::load_weights(folder, config, *w.store);
  return model::keep_panels(folder, config, type, *w.store, source);
}

}  // namespace saturate::train
