// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "model/transformer.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::model {

// What a decoder's mixers keep between the steps of generation, in device memory.
class DecodeCache {
 public:
  // Zeroed, for so many tokens and sequences in all. Errors: out_of_memory.
  DecodeCache(const Transformer& model, const Stream& stream, DType compute, int64_t slots,
              int64_t rows);

  // One step for each of decoder_mixers(): `common` with the mixer's state.
  std::vector<MixerStep> steps(const MixerStep& common) const;

 private:
  struct State {
    Buffer slots, rows;
  };
  std::vector<State> states_;  // by mixer
};

}  // namespace saturate::model
