// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>

#include "kernels/gemm/packed/packed_linear.h"

namespace saturate::kernels {

/// Some outputs of packed weights, copied so that they lie side by side: a product with these gives the
/// bits that one with all of them has there.
class PackedOutputs {
 public:
  PackedOutputs() = default;
  // Output i is outputs[i] of `all`, in 0 .. n - 1. In the caller's thread. Errors: out_of_memory.
  // Cost: reads k elements of each output from memory that all outputs of a panel share.
  PackedOutputs(const PackedView& all, std::span<const int32_t> outputs);
  const PackedView& view() const noexcept { return view_; }

 private:
  PackedView view_;
  Buffer memory_;
};

}  // namespace saturate::kernels
