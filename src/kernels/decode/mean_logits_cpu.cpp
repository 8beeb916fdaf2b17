// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/decode/beam_row_cpu.h"
#include "kernels/decode/mean_logits_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
void mean_of_row(const MeanLogitsArgs& a, int64_t row) {
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  const BeamState& b = a.state;
  if (b.finished[row] != 0 || static_cast<const T*>(b.scores)[row] == kNever ||
      b.positions[row] < b.sentences[row / a.beam].prefix)
    return;
  std::array<const T*, kMaxModels> z;
  const auto models = static_cast<size_t>(a.models);
  double sums = 0;
  for (size_t m = 0; m < models; ++m) {
    const LogitsRow<T> logits = logits_row<T>(a, a.logits[m], row);
    apply_sentence_rules(a, row, logits);
    sums += a.weights[m] * static_cast<double>(log_sum(logits, largest_of_stretches(logits)));
    z[m] = logits.z;
  }
  static_cast<T*>(a.log_sums)[row] = static_cast<T>(sums);
  const LogitsRow<T> mean = logits_row<T>(a, a.mean, row);
  for (int64_t c = 0; c < mean.count; ++c) {
    double sum = 0;
    for (size_t m = 0; m < models; ++m) sum += a.weights[m] * static_cast<double>(z[m][c]);
    mean.z[c] = static_cast<T>(sum);
  }
}

}  // namespace

void mean_logits_cpu(const Context&, const MeanLogitsArgs& a) {
  parallel_for(a.sentences * a.beam, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      a.dtype == DType::f64 ? mean_of_row<double>(a, row) : mean_of_row<float>(a, row);
  });
}

}  // namespace saturate::kernels
