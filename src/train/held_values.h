// SPDX-License-Identifier: Apache-2.0
// Elements of a parameter's array as files have them, in the wide type, whatever they are held in.
#pragma once
#include <vector>

#include "ops/parameters.h"

namespace saturate::train {

/// Moves runs of neighbouring elements between an array of a store and the host, at most so many at
/// once. Moments in bf16 are exact in a file; those of blocks are code times scale, from which
/// store() finds the same codes and scales again.
class HeldValues {
 public:
  // `store` and `stream` outlive this. Errors: out_of_memory.
  HeldValues(const ParameterStore& store, const Stream& stream, int64_t most);

  // The values from `memory` on, which for_held() gave for array `a` of `group`; valid until the next
  // call. Synchronises.
  const char* load(const ParameterGroup& group, StateArray a, char* memory, int64_t elements);
  // The other way. Moments in blocks: `memory` is the start of a block, and so is its end, or the end
  // of a parameter. Synchronises.
  void store(const ParameterGroup& group, StateArray a, char* memory, int64_t elements,
             const char* values);

 private:
  const ParameterStore& store_;
  const Stream& stream_;
  HostBuffer staging_;
  std::vector<char> wide_;
  std::vector<float> scales_;
};

}  // namespace saturate::train
