// SPDX-License-Identifier: Apache-2.0
// What both devices compute alike, and where the parts of the scratch lie.
#pragma once
#include "kernels/optimizer/adafactor.h"
#include "kernels/optimizer/step_rules.h"

namespace saturate::kernels {

// One after the other in the scratch.
SAT_HD double* adafactor_means(const AdafactorArgs& x) { return static_cast<double*>(x.scratch); }
SAT_HD double* adafactor_squares(const AdafactorArgs& x) {  // (pieces, 2)
  return adafactor_means(x) + x.tensor_count;
}
SAT_HD double* adafactor_partials(const AdafactorArgs& x) {
  return adafactor_squares(x) + 2 * x.piece_count;
}

// The scalars of a step.
template <class T>
struct AdafactorStep {
  AdamWStep<T> adamw;  // of which its corrections are not used
  T keep = 0;
};
template <class T>
SAT_HD AdafactorStep<T> adafactor_step(const AdafactorArgs& x) {
  AdamWArgs a;
  a.weight_decay = x.weight_decay;
  a.clip_norm = x.clip_norm;
  a.ema_decay = x.ema_decay;
  a.token_budget = x.token_budget;
  a.schedule = x.schedule;
  a.state = x.state;
  return {adamw_step<T>(a), static_cast<T>(1.0 - pow(x.state->updates + 1.0, -0.8))};
}

template <class T>
SAT_HD T adafactor_moment(T keep, T before, double mean) {
  return keep * before + (T(1) - keep) * static_cast<T>(mean + 1e-30);
}

// Columns of row r that this rank updates.
struct AdafactorSpan {
  int64_t begin, end;
};
SAT_HD AdafactorSpan adafactor_span(const AdafactorTensor& t, int64_t r) {
  const int64_t begin = t.begin - r * t.cols, end = t.end - r * t.cols;
  return {begin > 0 ? begin : 0, end < t.cols ? end : t.cols};
}

// What u of row r is, but for g and the column: 1 of a vector.
template <class T>
SAT_HD T adafactor_row(const AdafactorTensor& t, const T* factors, double mean, int64_t r) {
  return t.rows > 1 ? T(1) / root(factors[t.factors + r] / static_cast<T>(mean)) : T(1);
}
// Where the moments begin by which elements of a row differ.
SAT_HD int64_t adafactor_columns(const AdafactorTensor& t) {
  return t.factors + (t.rows > 1 ? t.rows : 0);
}

// What multiplies u, and w: {size / max(1, rms(u)), size * decay}.
template <class T>
struct AdafactorSize {
  T update, decay;
};
template <class T>
SAT_HD AdafactorSize<T> adafactor_size(const AdafactorArgs& x, const AdafactorTensor& t,
                                       const AdafactorStep<T>& step, const double* totals) {
  const double n = static_cast<double>(t.count());
  const double of_update = sqrt(totals[0] / n), of_weights = sqrt(totals[1] / n);
  double size = static_cast<double>(step.adamw.lr);
  if (x.relative) size *= of_weights > 1e-3 ? of_weights : 1e-3;
  const double decay = t.decay == DecayRule::decayed ? static_cast<double>(step.adamw.decay) : 0.0;
  return {static_cast<T>(size / (of_update > 1.0 ? of_update : 1.0)), static_cast<T>(size * decay)};
}

void adafactor_sums_cpu(const Context& ctx, const AdafactorArgs& args);
void adafactor_sums_cuda(const Context& ctx, const AdafactorArgs& args);
void adafactor_measure_cpu(const Context& ctx, const AdafactorArgs& args);
void adafactor_measure_cuda(const Context& ctx, const AdafactorArgs& args);
void adafactor_apply_cpu(const Context& ctx, const AdafactorArgs& args);
void adafactor_apply_cuda(const Context& ctx, const AdafactorArgs& args);

}  // namespace saturate::kernels
