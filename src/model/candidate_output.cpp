// SPDX-License-Identifier: Apache-2.0
#include "model/candidate_output.h"

#include <algorithm>
#include <utility>

namespace saturate::model {

CandidateOutput::CandidateOutput(const Transformer& model, const ParameterStore& store,
                                 std::vector<int32_t> ids)
    : ids_(std::move(ids)), weights_(store.packed(model.output_weight())->view(), ids_) {
  if (!model.config().output_bias) return;
  const ParameterId id = store.find("output.bias");
  SAT_ASSERT(id.index >= 0);
  const auto* const bias = static_cast<const float*>(store.compute(id));
  for (const int32_t token : ids_) bias_.push_back(bias[token]);
}

kernels::TokenColumns CandidateOutput::columns() const {
  constexpr int64_t kVector = 16;
  const auto count = static_cast<int64_t>(ids_.size());
  return {ids_.data(), count, (count + kVector - 1) / kVector * kVector};
}

void CandidateOutput::multiply(const Context& ctx, const float* x, int64_t rows, float* y,
                               kernels::CpuLevel level) const {
  kernels::packed_linear(ctx, {.x = x,
                               .w = weights_.view(),
                               .bias = bias_.empty() ? nullptr : bias_.data(),
                               .y = y,
                               .rows = rows,
                               .ldx = weights_.view().k,
                               .ldy = columns().ld,
                               .level = level});
}

Value candidate_logits(Tape& tape, const Transformer& model, Value hidden, int64_t beam,
                       const CandidatePlaces& places) {
  const Tape::Info in = tape.info(hidden);
  const int64_t all = Transformer::padded_vocab(model.config().vocab_target);
  const Value logits = tape.make("logits", in.dtype, in.rows, all);
  const auto level = std::min(kernels::cpu_level(), tape.parameters().kernels().cpu);
  tape.record("candidates", {hidden}, {logits}, [=, &places](const Run& r) {
    for (int64_t s = 0; s < in.rows / beam; ++s) {
      const CandidateOutput* const output = places.outputs[static_cast<size_t>(s)];
      if (output == nullptr) continue;
      output->multiply(r.ctx, r.as<float>(hidden) + s * beam * in.cols, beam,
                       r.as<float>(logits) + s * beam * all, level);
    }
  });
  return logits;
}

}  // namespace saturate::model
