// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "kernels/host/half.h"
#include "kernels/host/vector_math.h"
#include "kernels/optimizer/optimizer_impl.h"
#include "kernels/optimizer/step_rules.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {

void gradient_norm_cpu(const Context&, const GradientNormArgs& x) {
  const int64_t parts = norm_parts(x.count), length = (x.count + parts - 1) / parts;
  double* partial = static_cast<double*>(x.partial);
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = std::min(p * length, x.count), last = std::min(first + length, x.count);
      partial[p] = lane_sum<double>(last - first, [g = x.grad + first](int64_t i) {
        return static_cast<double>(g[i]) * static_cast<double>(g[i]);
      });
    }
  });
  double sum = 0;
  for (int64_t p = 0; p < parts; ++p) sum += partial[p];
  x.state->grad_square_sum = sum;
}

void adamw_cpu(const Context&, const AdamWArgs& x) {
  const AdamWStep step = adamw_step(x);
  if (!step.good) return;
  parallel_for(x.count / kParameterAlign, 64, [&](int64_t begin, int64_t end) {
    // Copies that no float written below can alias: otherwise the loop is not vectorised.
    const AdamWArgs rates = x;
    const AdamWStep r = step;
    for (int64_t group = begin; group < end; ++group) {
      if (x.rules[group] == GroupRule::frozen) continue;
      const float decay = x.rules[group] == GroupRule::decayed ? step.decay : 0.0f;
      const int64_t first = group * kParameterAlign;
      float* __restrict w = x.master + first;
      float* __restrict m = x.m + first;
      float* __restrict v = x.v + first;
      const float* __restrict g = x.grad + first;
      for (int64_t i = 0; i < kParameterAlign; ++i)
        adamw_element(rates, r, decay, g[i], w[i], m[i], v[i]);
      if (x.ema != nullptr) {
        float* ema = x.ema + first;
        for (int64_t i = 0; i < kParameterAlign; ++i)
          ema[i] = step.ema * ema[i] + (1.0f - step.ema) * w[i];
      }
      if (x.compute == nullptr) continue;
      auto* compute = static_cast<uint16_t*>(x.compute) + first;
      const bool bf16 = x.compute_type == DType::bf16;
      for (int64_t i = 0; i < kParameterAlign; ++i)
        compute[i] = bf16 ? to_bf16(w[i]).bits : to_f16(w[i]).bits;
    }
  });
}

void finish_step_cpu(const Context&, const FinishStepArgs& x) {
  const StepRecord record = finish(*x.state, x);
  StepRecord& slot = x.ring[(record.step - 1) % x.ring_slots];
  const std::atomic_ref<uint64_t> sequence(slot.sequence);
  put_record(slot, record);
  // Publishes the fields above to a reader that loads `sequence` with acquire.
  sequence.store(static_cast<uint64_t>(record.step), std::memory_order_release);
}

void batch_intake_cpu(const Context&, const BatchIntakeArgs& x) {
  const auto rank = static_cast<uint64_t>(x.rank), ranks = static_cast<uint64_t>(x.ranks);
  const uint64_t taken = micro_batches_taken(x.state->rng[1], rank, ranks);
  std::copy_n(x.slots[taken % static_cast<uint64_t>(x.slot_count)], x.words, x.dst);
  x.state->rng[1] += ranks;
}

}  // namespace saturate::kernels
