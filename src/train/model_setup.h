// SPDX-License-Identifier: Apache-2.0
// From what the user wrote to what the engine takes.
#pragma once
#include "base/config.h"
#include "data/tokenizer.h"
#include "model/adapter_folder.h"
#include "model/model_config.h"
#include "train/training_step.h"

namespace saturate::train {

// model.preset, or what "auto" stands for where no other model is given.
std::string preset_name(const RunConfig& config);

// Whether a configuration asks for a language model: its preset is decoder-only.
bool is_language_model(const RunConfig& config);

// data.vocab_size and data.max_length, or where they are not given what suits the preset: 8000 and
// 256 for translation, a language model's own vocabulary and context.
int64_t vocabulary_size(const RunConfig& config);
int64_t longest_sentence(const RunConfig& config);

// `start` with the user's changes (model.*); vocabularies and special ids stay those of `start`.
// Errors: invalid_argument.
model::ModelConfig model_with(const RunConfig& config, model::ModelConfig start);
model::ModelConfig model_with(const RunConfig& config);  // of the preset

// The adapters that [lora] asks for beside the model of these tensors, whose folder is `base`; none with
// lora.rank = 0. Errors: those of lora_for.
model::Lora adapters_of(const RunConfig& config, std::span<const model::TensorMapping> model,
                        const std::string& base);

// model_with() and the vocabularies' sizes and special ids. Errors: invalid_argument.
model::ModelConfig resolve_model(const RunConfig& config, const data::Tokenizer& source,
                                 const data::Tokenizer& target);

// Whether products of layers are rounded to fewer bits than the type they are computed in: fp8, mxfp8, nvfp4.
bool rounds_operands(const std::string& precision);

// "auto" is bf16 where the GPU has it (sm_80 on), fp16 on sm_75, fp32 on the CPU.
// On the CPU everything is computed in the result's type; of bf16 there, which is f32 here, products
// round their operands (KernelOptions::allow_bf16).
// Errors: unsupported for fp16 on the CPU, or bf16 on one without AVX512-BF16 or below sm_80.
DType resolve_precision(const std::string& precision, Device device);

// What a store with its kernels computes in, for reports: "bf16" also where products alone do.
std::string precision_name(const ParameterStore& store);

// Of a step on that many ranks, whose layout has been checked (check_layout).
StepOptions resolve_step(const RunConfig& config, const data::BatchShape& shape, int ranks);

}  // namespace saturate::train
