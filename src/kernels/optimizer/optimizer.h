// SPDX-License-Identifier: Apache-2.0
// What ends a training step. For all of it:
//
// Aliasing  none.
// Stream    enqueued on ctx.stream; graph-capturable; never synchronises.
// Order     bitwise equal run to run.
// Errors    invalid_argument for sizes, pointers and arrays off 16 bytes; device.
#pragma once
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/optimizer/moments.h"
#include "kernels/optimizer/schedule.h"
#include "kernels/optimizer/step_state.h"
#include "runtime/context.h"

namespace saturate::kernels {

// The parameters of a group lie in flat arrays of `count` elements, each parameter padded to
// kParameterAlign, so the optimizer is a few launches whatever the model.
constexpr int64_t kParameterAlign = 256;

// Weight decay for a piece of kParameterAlign elements, or none.
enum class DecayRule : uint8_t { plain, decayed };

// Elements [begin, end) of a group, which this rank updates. Elements are numbered as on every
// other rank: that is their place in grad, rules and compute. Of the optimizer's arrays (master, m,
// v, ema) a rank may hold its own ranges alone: `local` is the place of `begin` there.
struct OwnedRange {
  int64_t begin = 0, end = 0, local = 0;
  friend bool operator==(const OwnedRange&, const OwnedRange&) = default;
};

// Squares are summed in blocks of this many elements, counted from the start of the group. A range
// starts at the start of a block and ends at the end of one or of the group, so that a block's sum
// does not depend on how many ranks share the group.
constexpr int64_t kNormBlock = 4096;
constexpr int64_t norm_blocks(int64_t count) { return (count + kNormBlock - 1) / kNormBlock; }

// state->grad_square_sum = sum of grad[i]^2, in two calls: gradient_norm_blocks() writes the sum of
// each block of the own ranges to `partial` and zero for all others; gradient_norm_join() adds the
// blocks up. Between the two, ranks that hold different ranges add up their `partial`: the result
// is the same to the last bit for any number of ranks. Runs after the gradients of all ranks have
// been summed.
//
// Shapes    grad (count), count a multiple of kParameterAlign; partial (norm_blocks(count)).
// Types     grad in f32, or f64 on the CPU; sums in f64.
// Order     inside a block and over the blocks fixed, by `count` alone.
// Cost      one read of the own ranges of grad.
// Source    Pascanu et al., arXiv:1211.5063 (what the norm is for).
struct GradientNormArgs {
  const void* grad = nullptr;
  DType dtype = DType::f32;
  int64_t count = 0;
  std::span<const OwnedRange> ranges;  // ascending; read before the call returns
  double* partial = nullptr;
  StepState* state = nullptr;
};
void gradient_norm_blocks(const Context& ctx, const GradientNormArgs& args);
void gradient_norm_join(const Context& ctx, const GradientNormArgs& args);

// One AdamW step with decoupled weight decay, clipping, unscaling, EMA and the low-precision copy:
//
//   g = grad * unscale * min(1, clip_norm / norm),  unscale = token_budget / (loss_scale * tokens)
//   m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   w = w - lr * (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + weight_decay * decay * w)
//   ema = ema_t * ema + (1-ema_t) * w, ema_t = min(ema_decay, (1 + t) / (10 + t))
//   compute = round(w)
//
// with norm = unscale * sqrt(state->grad_square_sum), tokens = state->totals[2], t = updates + 1,
// and lr = learning_rate(schedule, step + 1), decay 1 where the rule is `decayed` and 0 elsewhere.
// Nothing is written when norm is not finite or tokens == 0, and nothing outside the own ranges.
//
// Shapes    grad, compute (count); master, m, v, ema: the own ranges, see OwnedRange::local; rules:
//           one per kParameterAlign elements of the group; ranges in multiples of kParameterAlign.
//           compute (in compute_type) and ema may be null. m and v as `moments` says: in bf16 or in
//           8-bit blocks w takes them before they are rounded; blocks have m_scales and v_scales, one
//           for kParameterAlign elements of m and v. Both need `pieces`, one as rules has.
// Types     master, m, v, grad, ema in f32, or all in f64 on the CPU; compute bf16 or f16.
// Order     elementwise. State is read only: finish_step updates it.
// Cost      28 bytes of memory traffic an element in f32, 20 with moments in bf16, 16 with blocks; 8
//           more with ema and 2 with compute.
// Source    Loshchilov and Hutter, arXiv:1711.05101.
struct AdamWArgs {
  void* master = nullptr;
  void* m = nullptr;
  void* v = nullptr;
  const void* grad = nullptr;
  void* ema = nullptr;
  void* compute = nullptr;
  DType dtype = DType::f32;
  DType compute_type = DType::bf16;
  MomentType moments = MomentType::wide;
  float *m_scales = nullptr, *v_scales = nullptr;
  const PieceName* pieces = nullptr;
  const DecayRule* rules = nullptr;
  std::span<const OwnedRange> ranges = {};  // ascending; read before the call returns
  float beta1 = 0.9f, beta2 = 0.98f, eps = 1e-9f, weight_decay = 0.0f;
  float clip_norm = 0.0f;  // 0: no clipping
  float ema_decay = 0.0f;
  float token_budget = 1.0f;  // what the loss gradient was divided by
  Schedule schedule = {};
  const StepState* state = nullptr;
};
void adamw(const Context& ctx, const AdamWArgs& args);

// Ends a step: judges it good or bad (see adamw), moves the loss scale (dynamic: halved after a bad
// step, doubled after growth_interval good ones, within [1/65536, 2^24]), counts, stores lr, writes
// ring[step % ring_slots] (step: steps finished before this one, so the record's own step - 1), and
// clears totals for the next step. `sequence` is stored last, with release (CUDA: system fence).
//
// Shapes    ring (ring_slots), mapped host memory; state: one.
// Types     StepState and StepRecord (step_state.h).
// Cost      one thread.
// Source    Micikevicius et al., arXiv:1710.03740, section 3.2 (the dynamic loss scale).
struct FinishStepArgs {
  StepState* state = nullptr;
  StepRecord* ring = nullptr;  // mapped host memory
  int64_t ring_slots = 0;
  Schedule schedule = {};
  float token_budget = 1.0f;
  bool dynamic_loss_scale = false;
  int32_t growth_interval = 2000;
};
void finish_step(const Context& ctx, const FinishStepArgs& args);

// Brings the next batch to where the graph reads it: copies `words` 32-bit words from
// slots[t % slot_count] to dst, t being the micro-batches that this rank has taken, then counts
// this one in state->rng[1] (micro_batch_counter). Slots are device memory; `slots` itself is a
// device array of device pointers.
//
// Shapes    slots (slot_count) of (words); dst (words).
// Types     32-bit words, whatever they hold.
// Cost      one read and one write of the words.
// Source    docs/adr/0004: the graph's arguments never change.
struct BatchIntakeArgs {
  const int32_t* const* slots = nullptr;
  int64_t slot_count = 0;
  int32_t* dst = nullptr;
  int64_t words = 0;
  int64_t rank = 0, ranks = 1;  // data parallel
  StepState* state = nullptr;
};
void batch_intake(const Context& ctx, const BatchIntakeArgs& args);

}  // namespace saturate::kernels
