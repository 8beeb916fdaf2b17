// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace saturate::kernels {

// Instruction sets that kernels on the CPU are chosen by, each with those before it. plain: any
// processor. vnni: AVX-512 with products of eight-bit integers; bf16: and of bf16; amx: and with tiles of
// both.
enum class CpuLevel : uint8_t { plain, avx2, avx512, vnni, bf16, amx };

class AttentionTable;
class GemmTable;

/// What whoever starts a run, a measurement or a call decides about kernels, beside the problems.
/// A value: plans copy what they need from it.
struct KernelOptions {
  std::shared_ptr<const GemmTable>
      gemm_table;  // tuned choices of products; null: their list's order
  std::shared_ptr<const AttentionTable> attention_table;  // of attention
  std::string matmul;  // the one implementation of products that may run; "": any that fits
  CpuLevel cpu = CpuLevel::amx;  // the newest that kernels chosen by it may use
  bool allow_tf32 = false;       // f32 products of a recorded list may use TF32 (train.tf32)
  bool allow_bf16 = false;       // on the CPU they may round operands to bf16 (train.precision)
};

// What the environment decides, for the program and the Python module to read once as they start:
// SATURATE_MATMUL names the one implementation of products, SATURATE_CPU (plain, avx2, avx512, vnni, bf16 or amx)
// the newest instruction set of packed weights, of attention and beam steps, both for measurements. Errors: invalid_argument for
// another word in SATURATE_CPU.
KernelOptions kernel_options_from_environment();

}  // namespace saturate::kernels
