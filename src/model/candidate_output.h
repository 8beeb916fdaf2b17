// SPDX-License-Identifier: Apache-2.0
// The output layer for the tokens alone that a translation may hold (shortlist.h). On the CPU.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/decode/beam_step.h"
#include "kernels/gemm/packed/packed_outputs.h"
#include "model/transformer.h"

namespace saturate::model {

/// A sentence's part of the output layer: weights and biases of its candidates, copied, so that its
/// steps read them as they lie. 4 (int8: 1) bytes for each candidate and channel.
class CandidateOutput {
 public:
  // `ids`: ascending, each once, of the target's vocabulary. The store packs. Errors: out_of_memory.
  CandidateOutput(const Transformer& model, const ParameterStore& store, std::vector<int32_t> ids);
  // Of logits whose rows lie so far apart that products may write whole vectors.
  kernels::TokenColumns columns() const;
  // y (rows, candidates) from x (rows, d_model): the bits that all logits have in these columns.
  void multiply(const Context& ctx, const float* x, int64_t rows, float* y,
                kernels::CpuLevel level) const;

 private:
  std::vector<int32_t> ids_;
  std::vector<float> bias_;  // empty: none
  kernels::PackedOutputs weights_;
};

// What recorded steps find at each place: a place without a sentence has no columns.
struct CandidatePlaces {
  explicit CandidatePlaces(size_t places) : outputs(places), columns(places) {}
  void put(size_t place, const CandidateOutput* output) {
    outputs[place] = output;
    columns[place] = output == nullptr ? kernels::TokenColumns{} : output->columns();
  }
  std::vector<const CandidateOutput*> outputs;
  std::vector<kernels::TokenColumns> columns;
};

// Transformer::logits() of the rows of places, `beam` each, with the columns that `places` says when the
// operation runs (BeamStepArgs::columns).
Value candidate_logits(Tape& tape, const Transformer& model, Value hidden, int64_t beam,
                       const CandidatePlaces& places);

}  // namespace saturate::model
