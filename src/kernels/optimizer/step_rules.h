// SPDX-License-Identifier: Apache-2.0
// The scalar part of an optimizer step, the same code on the CPU and on the GPU.
#pragma once
#include <cmath>

#include "kernels/optimizer/optimizer.h"

namespace saturate::kernels {

// What turns stored gradients into those of the loss per target token. Without tokens it is
// infinite, so that the norm is not finite and the step counts as bad.
SAT_HD double unscale_of(const StepState& s, float token_budget) {
  return static_cast<double>(token_budget) / (static_cast<double>(s.loss_scale) * s.totals[2]);
}
SAT_HD double norm_of(const StepState& s, float token_budget) {
  return unscale_of(s, token_budget) * sqrt(s.grad_square_sum);
}
SAT_HD bool is_good(double norm) { return norm - norm == 0.0; }  // false for inf and NaN

// Factors of one AdamW step, rounded to the type of the arrays.
template <class T>
struct AdamWStep {
  bool good = false;
  T gradient = 0, lr = 0, m_correction = 0, v_correction = 0, decay = 0, ema = 0;
};

template <class T>
SAT_HD AdamWStep<T> adamw_step(const AdamWArgs& x) {
  AdamWStep<T> r;
  const StepState& s = *x.state;
  const double norm = norm_of(s, x.token_budget);
  r.good = is_good(norm);
  const double clip = x.clip_norm > 0.0f && norm > x.clip_norm ? x.clip_norm / norm : 1.0;
  r.gradient = static_cast<T>(unscale_of(s, x.token_budget) * clip);
  r.lr = learning_rate(x.schedule, s.step + 1);
  const double t = s.updates + 1.0;
  r.m_correction = static_cast<T>(1.0 / (1.0 - pow(static_cast<double>(x.beta1), t)));
  r.v_correction = static_cast<T>(1.0 / sqrt(1.0 - pow(static_cast<double>(x.beta2), t)));
  r.decay = x.weight_decay;
  const double early = (1.0 + t) / (10.0 + t);
  r.ema = static_cast<T>(x.ema_decay < early ? x.ema_decay : early);
  return r;
}

// a * x + b; on a GPU rounded once. Written out, because a compiler may as well round the other
// product of the moments' sums once, and then each build would train in its own last bits.
template <class T>
SAT_HD T multiply_add(T a, T x, T b) {
#if defined(__CUDA_ARCH__)
  return fma(a, x, b);
#else
  return a * x + b;
#endif
}

SAT_HD float root(float x) { return sqrtf(x); }
SAT_HD double root(double x) { return sqrt(x); }

// One element. `decay` is weight_decay or 0; sqrt(v / (1 - b2^t)) = sqrt(v) * v_correction.
template <class T>
SAT_HD void adamw_element(const AdamWArgs& x, const AdamWStep<T>& r, T decay, T grad, T& w, T& m,
                          T& v) {
  const T beta1 = x.beta1, beta2 = x.beta2, eps = x.eps;
  const T g = grad * r.gradient;
  m = multiply_add(beta1, m, (T(1) - beta1) * g);
  v = multiply_add(beta2, v, (T(1) - beta2) * g * g);
  w -= r.lr * (m * r.m_correction / (root(v) * r.v_correction + eps) + decay * w);
}

// Moves the state to the next step and returns the record of the one that ends, `sequence` still 0.
SAT_HD StepRecord finish(StepState& s, const FinishStepArgs& x) {
  constexpr float kSmallestScale = 1.0f / 65536.0f, kLargestScale = 16777216.0f;
  const double norm = norm_of(s, x.token_budget);
  const bool good = is_good(norm);
  s.lr = learning_rate(x.schedule, s.step + 1);
  s.step += 1;
  s.bad_steps_in_row = good ? 0 : s.bad_steps_in_row + 1;
  s.updates += good ? 1 : 0;
  StepRecord r;
  r.step = s.step;
  r.loss_sum = s.totals[0];
  r.nll_sum = s.totals[1];
  r.target_tokens = s.totals[2];
  r.lr = s.lr;
  r.grad_norm = static_cast<float>(norm);
  r.loss_scale = s.loss_scale;
  r.skipped = good ? 0 : 1;
  r.bad_steps_in_row = s.bad_steps_in_row;
  s.good_steps = good ? s.good_steps + 1 : 0;
  if (x.dynamic_loss_scale) {
    if (!good) {
      s.loss_scale = fmaxf(0.5f * s.loss_scale, kSmallestScale);
    } else if (s.good_steps >= x.growth_interval) {
      s.loss_scale = fminf(2.0f * s.loss_scale, kLargestScale);
      s.good_steps = 0;
    }
  }
  for (double& total : s.totals) total = 0.0;
  return r;
}

// All of `record` but its sequence, which the caller stores last; Slot may be volatile.
template <class Slot>
SAT_HD void put_record(Slot& slot, const StepRecord& record) {
  slot.step = record.step;
  slot.loss_sum = record.loss_sum;
  slot.nll_sum = record.nll_sum;
  slot.target_tokens = record.target_tokens;
  slot.lr = record.lr;
  slot.grad_norm = record.grad_norm;
  slot.loss_scale = record.loss_scale;
  slot.skipped = record.skipped;
  slot.bad_steps_in_row = record.bad_steps_in_row;
}

}  // namespace saturate::kernels
