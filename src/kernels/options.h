// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>

namespace saturate::kernels {

class AttentionTable;
class GemmTable;

/// What whoever starts a run, a measurement or a call decides about kernels, beside the problems.
/// A value: plans copy what they need from it.
struct KernelOptions {
  std::shared_ptr<const GemmTable>
      gemm_table;  // tuned choices of products; null: their list's order
  std::shared_ptr<const AttentionTable> attention_table;  // of attention
  std::string matmul;       // the one implementation of products that may run; "": any that fits
  bool allow_tf32 = false;  // f32 products of a recorded list may use TF32 (train.tf32)
};

// What the environment decides, for the program and the Python module to read once as they start:
// SATURATE_MATMUL names the one implementation of products, for measurements.
KernelOptions kernel_options_from_environment();

}  // namespace saturate::kernels
