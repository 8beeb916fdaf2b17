// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "base/half.h"
#include "kernels/host/vector_math.h"
#include "kernels/optimizer/optimizer_impl.h"
#include "kernels/optimizer/step_rules.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {

namespace {

template <class T>
double block_sum(const T* grad, int64_t count) {
  return lane_sum<double>(count, [grad](int64_t i) {
    return static_cast<double>(grad[i]) * static_cast<double>(grad[i]);
  });
}

const MomentTables& moment_tables() {
  static const MomentTables tables = make_moment_tables();
  return tables;
}

template <class T>
void decode_piece(const AdamWArgs& x, int64_t local, T* m, T* v) {
  if (x.moments == MomentType::bf16) {
    const auto *m_in = static_cast<const uint16_t*>(x.m) + local,
               *v_in = static_cast<const uint16_t*>(x.v) + local;
    for (int64_t i = 0; i < kParameterAlign; ++i) {
      m[i] = decode_bf16(m_in[i]);
      v[i] = decode_bf16(v_in[i]);
    }
    return;
  }
  const MomentTables& tables = moment_tables();
  const auto *m_in = static_cast<const uint8_t*>(x.m) + local,
             *v_in = static_cast<const uint8_t*>(x.v) + local;
  const T m_scale = x.m_scales[local / kParameterAlign],
          v_scale = x.v_scales[local / kParameterAlign];
  for (int64_t i = 0; i < kParameterAlign; ++i) {
    m[i] = m_scale * static_cast<T>(decode_signed(tables.with_sign, m_in[i]));
    v[i] = v_scale * static_cast<T>(decode_plain(tables.plain, v_in[i]));
  }
}

template <class T>
void encode_piece(const AdamWArgs& x, PieceName name, int64_t local, const T* m, const T* v) {
  const auto each = [&](const auto& store_one) {
    for (int quad = 0; quad < static_cast<int>(kParameterAlign) / 4; ++quad) {
      const Random4 r = moment_random(x.state->rng[0], x.state->step, name, quad);
      for (int j = 0; j < 4; ++j) store_one(4 * quad + j, r.x[j] & 0xFFFFu, r.x[j] >> 16);
    }
  };
  if (x.moments == MomentType::bf16) {
    auto *m_out = static_cast<uint16_t*>(x.m) + local, *v_out = static_cast<uint16_t*>(x.v) + local;
    each([&](int i, uint32_t of_m, uint32_t of_v) {
      m_out[i] = encode_bf16(static_cast<float>(m[i]), of_m);
      v_out[i] = encode_bf16(static_cast<float>(v[i]), of_v);
    });
    return;
  }
  uint32_t m_key = 0, v_key = 0;
  for (int64_t i = 0; i < kParameterAlign; ++i) {
    m_key = std::max(m_key, extremum_key(static_cast<float>(m[i])));
    v_key = std::max(v_key, extremum_key(static_cast<float>(v[i])));
  }
  const float m_scale = extremum_of(m_key), v_scale = extremum_of(v_key);
  x.m_scales[local / kParameterAlign] = m_scale;
  x.v_scales[local / kParameterAlign] = v_scale;
  const MomentTables& tables = moment_tables();
  auto *m_out = static_cast<uint8_t*>(x.m) + local, *v_out = static_cast<uint8_t*>(x.v) + local;
  each([&](int i, uint32_t of_m, uint32_t of_v) {
    m_out[i] = encode_signed(tables.with_sign, static_cast<float>(m[i]) / m_scale, of_m);
    v_out[i] = encode_plain(tables.plain, static_cast<float>(v[i]) / v_scale, of_v);
  });
}

template <class T>
void adamw_piece(const AdamWArgs& x, const AdamWStep<T>& step, int64_t from, int64_t local) {
  // Copies that nothing written below can alias: otherwise the loop is not vectorised.
  const AdamWArgs rates = x;
  const AdamWStep<T> r = step;
  const T decay = x.rules[from / kParameterAlign] == DecayRule::decayed ? step.decay : T(0);
  const bool rounds = x.moments != MomentType::wide;
  T m_values[kParameterAlign], v_values[kParameterAlign];
  if (rounds) decode_piece(x, local, m_values, v_values);
  T* __restrict w = static_cast<T*>(x.master) + local;
  T* __restrict m = rounds ? m_values : static_cast<T*>(x.m) + local;
  T* __restrict v = rounds ? v_values : static_cast<T*>(x.v) + local;
  const T* __restrict g = static_cast<const T*>(x.grad) + from;
  for (int64_t i = 0; i < kParameterAlign; ++i)
    adamw_element<T>(rates, r, decay, g[i], w[i], m[i], v[i]);
  if (rounds) encode_piece(x, x.pieces[from / kParameterAlign], local, m, v);
  if (x.ema != nullptr) {
    T* ema = static_cast<T*>(x.ema) + local;
    for (int64_t i = 0; i < kParameterAlign; ++i)
      ema[i] = step.ema * ema[i] + (T(1) - step.ema) * w[i];
  }
  if (x.compute == nullptr) return;
  auto* compute = static_cast<uint16_t*>(x.compute) + from;
  const bool bf16 = x.compute_type == DType::bf16;
  for (int64_t i = 0; i < kParameterAlign; ++i) {
    const auto value = static_cast<float>(w[i]);
    compute[i] = bf16 ? to_bf16(value).bits : to_f16(value).bits;
  }
}

template <class T>
void adamw_of(const AdamWArgs& x) {
  const AdamWStep<T> step = adamw_step<T>(x);
  if (!step.good) return;
  for (const OwnedRange& range : x.ranges) {
    const int64_t pieces = (range.end - range.begin) / kParameterAlign;
    parallel_for(pieces, 64, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t at = p * kParameterAlign;
        adamw_piece<T>(x, step, range.begin + at, range.local + at);
      }
    });
  }
}

}  // namespace

void gradient_norm_blocks_cpu(const Context&, const GradientNormArgs& x) {
  std::fill_n(x.partial, norm_blocks(x.count), 0.0);
  for (const OwnedRange& range : x.ranges) {
    const int64_t first = range.begin / kNormBlock;
    parallel_for(norm_blocks(range.end) - first, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = first + begin; b < first + end; ++b) {
        const int64_t from = b * kNormBlock, n = std::min(kNormBlock, range.end - from);
        x.partial[b] = x.dtype == DType::f64
                           ? block_sum(static_cast<const double*>(x.grad) + from, n)
                           : block_sum(static_cast<const float*>(x.grad) + from, n);
      }
    });
  }
}

void gradient_norm_join_cpu(const Context&, const GradientNormArgs& x) {
  double sum = 0;
  for (int64_t b = 0; b < norm_blocks(x.count); ++b) sum += x.partial[b];
  x.state->grad_square_sum = sum;
}

void adamw_cpu(const Context&, const AdamWArgs& x) {
  x.dtype == DType::f64 ? adamw_of<double>(x) : adamw_of<float>(x);
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
