// SPDX-License-Identifier: Apache-2.0
// The parts of a step of Muon that are no products, in order.
#pragma once
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/step_rules.h"

namespace saturate::kernels {

// x (batch, rows, cols) in MuonArgs::product_type(); partial: sums of squares of kNormBlock elements
// of each matrix, one matrix after the other.
struct MuonPartArgs {
  MuonArgs muon;
  void* x = nullptr;
  double* partial = nullptr;
  SAT_HD int64_t matrix() const noexcept { return muon.rows * muon.cols; }
};
// Writes m, x and partial.
void muon_momentum_cpu(const Context& ctx, const MuonPartArgs& args);
void muon_momentum_cuda(const Context& ctx, const MuonPartArgs& args);
// x = x / max(|x|, 1e-7)
void muon_scale_cpu(const Context& ctx, const MuonPartArgs& args);
void muon_scale_cuda(const Context& ctx, const MuonPartArgs& args);
// Writes w, ema and compute.
void muon_apply_cpu(const Context& ctx, const MuonPartArgs& args);
void muon_apply_cuda(const Context& ctx, const MuonPartArgs& args);

// The scalars of a step, as AdamW has them.
template <class T>
SAT_HD AdamWStep<T> muon_step(const MuonArgs& x) {
  AdamWArgs a;
  a.weight_decay = x.weight_decay;
  a.clip_norm = x.clip_norm;
  a.ema_decay = x.ema_decay;
  a.token_budget = x.token_budget;
  a.schedule = x.schedule;
  a.state = x.state;
  return adamw_step<T>(a);
}

// Momentum after this gradient and what is made orthogonal.
template <class T>
SAT_HD T muon_direction(T mu, T g, T& m) {
  m = multiply_add(mu, m, (T(1) - mu) * g);
  return multiply_add(mu, m, (T(1) - mu) * g);
}

template <class T>
SAT_HD T muon_size(const MuonArgs& x) {
  const double longest = static_cast<double>(x.rows > x.cols ? x.rows : x.cols);
  return static_cast<T>(0.2 * sqrt(longest));
}

}  // namespace saturate::kernels
