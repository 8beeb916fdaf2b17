// SPDX-License-Identifier: Apache-2.0
// Muon: momentum whose matrices are made nearly orthogonal.
#pragma once
#include "kernels/optimizer/optimizer.h"

namespace saturate::kernels {

// One step on `batch` matrices of one shape, with the clipped gradient g of adamw():
//
//   m = mu m + (1-mu) g;  x = (1-mu) g + mu m                     (Nesterov's momentum)
//   x = x / max(|x|, 1e-7), |x| the root of the sum of squares of a matrix
//   five times: a = x x^T (x^T x where rows > cols);  x = 3.4445 x + (-4.775 a + 2.0315 a^2) x
//   w = w - lr * (0.2 sqrt(max(rows, cols)) x + weight_decay w)
//
// so that a step has the size of one of AdamW's and both take one learning rate. EMA and the
// low-precision copy as there. Nothing but scratch is written in a bad step.
//
// Shapes    master, m, grad, ema, compute (batch, rows, cols); ema and compute may be null. scratch:
//           muon_scratch_bytes().
// Types     master, m, grad, ema in f32, or all in f64 on the CPU; compute bf16 or f16. Products and
//           what they read are in compute_type where there is a compute copy, else in dtype.
// Aliasing  none.
// Stream    enqueued on ctx.stream; graph-capturable; never synchronises; uses ctx.workspace.
// Order     bitwise equal run to run.
// Errors    invalid_argument for sizes, pointers and types; those of matmul(); device.
// Cost      per matrix, with s and l its shorter and longer side: 20 s^2 l + 10 s^3 flops, 18 launches a call.
// Source    Jordan et al., "Muon" (kellerjordan.github.io/posts/muon, 2024); the step's size from
//           Liu et al., arXiv:2502.16982.
struct MuonArgs {
  void* master = nullptr;
  void* m = nullptr;
  const void* grad = nullptr;
  void* ema = nullptr;
  void* compute = nullptr;
  void* scratch = nullptr;
  int64_t batch = 1, rows = 0, cols = 0;
  DType dtype = DType::f32;
  DType compute_type = DType::bf16;
  float momentum = 0.95f, weight_decay = 0.0f;
  float clip_norm = 0.0f;
  float ema_decay = 0.0f;
  float token_budget = 1.0f;
  Schedule schedule = {};
  const StepState* state = nullptr;

  DType product_type() const noexcept { return compute != nullptr ? compute_type : dtype; }
};
void muon(const Context& ctx, const MuonArgs& args);
size_t muon_scratch_bytes(const MuonArgs& args);

}  // namespace saturate::kernels
