// SPDX-License-Identifier: Apache-2.0
// From the parallel.* keys to the mesh and the options of a step.
#pragma once
#include <string>

#include "base/config.h"
#include "model/model_config.h"
#include "ops/layout.h"
#include "parallel/mesh.h"

namespace saturate::train {

// How the ranks of a step share its work beside the mesh; the keys of [parallel], resolved.
struct ParallelOptions {
  int zero = 0;                    // 0 to 3
  std::string schedule = "1f1b";   // of micro-batches in a pipeline
  int chunks = 1;                  // runs of layers on each of its ranks
  std::string recompute = "auto";  // none, selective, full; auto: as memory demands
  bool offload = false;            // the optimizer's state lies in host memory
  DType reduce = DType::f32;       // type in which gradients travel
  bool coded_copies = false;       // sums over copies of the state travel in 8 bits
};

// The mesh of that many ranks. Errors: invalid_argument (the product of the extents is not `ranks`).
parallel::MeshExtents mesh_extents(const ParallelConfig& config, int ranks);

// The keys that say how ranks transfer.
TransferOptions transfer_options(const ParallelConfig& config);

// Whether this model can be cut so over that many ranks. The same on every rank, before anything is
// made. Errors: invalid_argument or unsupported with the key, its value, the rule and a way out.
void check_layout(const RunConfig& config, const model::ModelConfig& model, int ranks);

// Whether gradients of a model with products of that type can travel so. Errors: invalid_argument.
void check_sums(const ParallelOptions& options, DType compute);

// After check_layout().
ParallelOptions resolve_parallel(const ParallelConfig& config, int ranks);

// The layout as --parallel takes it, with every axis that has several ranks: "dp=2,tp=2,zero=1".
std::string layout_text(const ParallelConfig& config, int ranks);

// Rows of a batch are a multiple of this: equal parts of whole 8-row pieces for all that share them.
inline int64_t row_multiple(const ParallelConfig& config) { return 8 * config.tp * config.cp; }

}  // namespace saturate::train
