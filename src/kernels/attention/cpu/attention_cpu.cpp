// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/attention/cpu/kernel.h"
#include "kernels/attention/features.h"
#include "kernels/attention/impl.h"
#include "runtime/memory.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
template <class T>
using Kernels = AttentionCpu<kVectorBytes, T>;

// On the CPU the offsets can be read, so a sequence beyond the bounds is an error, not a memory
// fault.
void check_offsets(const char* op, const char* name, const int32_t* cu, int64_t sequences,
                   int64_t rows, int64_t longest) {
  for (int64_t s = 0; s < sequences; ++s)
    if (cu[s] < 0 || cu[s + 1] < cu[s] || cu[s + 1] - cu[s] > longest || cu[s + 1] > rows)
      throw Error(
          Errc::invalid_argument, op,
          fmt::format("{}[{}..{}] is {}..{}: offsets must not fall, a sequence may have at most "
                      "{} rows, and there are {}",
                      name, s, s + 1, cu[s], cu[s + 1], longest, rows));
}

template <class T>
void zero_tail(void* base, int64_t from, int64_t rows, int64_t stride, int64_t width) {
  for (int64_t r = from; r < rows; ++r)
    std::fill_n(static_cast<T*>(base) + r * stride, width, T(0));
}

template <class T>
size_t scratch_bytes(const AttentionArgs& a) {
  const int64_t size = std::max(a.head_size, attention_v_head_size(a));
  return static_cast<size_t>(Kernels<T>::scratch_elements(a.max_k, size)) * sizeof(T);
}

template <class T>
void forward(const AttentionArgs& a) {
  const bool features = features_of(a) != kNoFeatures;
  parallel_for(a.sequences * a.heads, 1, [&](int64_t begin, int64_t end) {
    const Buffer scratch(Device{}, scratch_bytes<T>(a));
    for (int64_t n = begin; n < end; ++n) {
      const int64_t s = n / a.heads, h = n % a.heads;
      features ? Kernels<T>::template forward<true>(a, s, h, scratch.as<T>())
               : Kernels<T>::template forward<false>(a, s, h, scratch.as<T>());
    }
  });
  const int64_t used = a.cu_q[a.sequences];
  zero_tail<T>(a.o, used, a.q_rows, a.o_stride, a.heads * attention_v_head_size(a));
  for (int64_t h = 0; h < a.heads; ++h)
    std::fill_n(static_cast<T*>(a.lse) + h * a.q_rows + used, a.q_rows - used, T(0));
}

template <class T>
void zero_bias_gradient(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  for (int64_t s = 0; s < (b.d_bias_sequence_stride ? a.sequences : 1); ++s)
    for (int64_t h = 0; h < (b.d_bias_head_stride ? a.heads : 1); ++h)
      for (int64_t i = 0; i < (b.d_bias_row_stride ? a.max_q : 1); ++i)
        std::fill_n(static_cast<T*>(b.d_bias) + s * b.d_bias_sequence_stride +
                        h * b.d_bias_head_stride + i * b.d_bias_row_stride,
                    a.max_k, T(0));
}

// Sums over the sequences in their order, whatever thread made the parts (sequence, head).
template <class T>
void add_head_sums(const AttentionBackwardArgs& b,
                   const std::vector<typename Kernels<T>::HeadSums>& parts) {
  const AttentionArgs& a = b.forward;
  for (int64_t h = 0; h < a.heads; ++h) {
    typename Kernels<T>::HeadSums sum;
    for (int64_t s = 0; s < a.sequences; ++s) {
      const auto& part = parts[static_cast<size_t>(s * a.heads + h)];
      sum.d_slope += part.d_slope, sum.d_sink += part.d_sink;
    }
    if (b.d_alibi_slopes) static_cast<T*>(b.d_alibi_slopes)[h] = sum.d_slope;
    if (b.d_sinks) static_cast<T*>(b.d_sinks)[h] = sum.d_sink;
  }
}

template <class T>
void backward(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const bool features = features_of(a) != kNoFeatures;
  std::vector<typename Kernels<T>::HeadSums> sums(static_cast<size_t>(a.sequences * a.heads));
  // Sequences or heads that add to the same elements of d_bias take their turn on one thread.
  const int64_t s_turns = b.d_bias && b.d_bias_sequence_stride == 0 ? a.sequences : 1;
  const int64_t h_turns = b.d_bias && b.d_bias_head_stride == 0 ? a.kv_heads : 1;
  const int64_t h_items = a.kv_heads / h_turns;
  const int64_t items = a.sequences == 0 ? 0 : a.sequences / s_turns * h_items;
  if (b.d_bias) zero_bias_gradient<T>(b);
  parallel_for(items, 1, [&](int64_t begin, int64_t end) {
    const Buffer scratch(Device{}, scratch_bytes<T>(a));
    for (int64_t n = begin; n < end; ++n)
      for (int64_t turn = 0; turn < s_turns * h_turns; ++turn) {
        const int64_t s = n / h_items * s_turns + turn / h_turns;
        const int64_t kv = n % h_items * h_turns + turn % h_turns;
        auto* sum = &sums[static_cast<size_t>(s * a.heads + kv * (a.heads / a.kv_heads))];
        features ? Kernels<T>::template backward<true>(b, s, kv, scratch.as<T>(), sum)
                 : Kernels<T>::template backward<false>(b, s, kv, scratch.as<T>(), sum);
      }
  });
  add_head_sums<T>(b, sums);
  const int64_t k_used = a.cu_k[a.sequences];
  zero_tail<T>(b.d_q, a.cu_q[a.sequences], a.q_rows, b.d_q_stride, a.heads * a.head_size);
  zero_tail<T>(b.d_k, k_used, a.k_rows, b.d_k_stride, a.kv_heads * a.head_size);
  zero_tail<T>(b.d_v, k_used, a.k_rows, b.d_v_stride, a.kv_heads * attention_v_head_size(a));
}

void check_offsets(const char* op, const AttentionArgs& a) {
  check_offsets(op, "cu_q", a.cu_q, a.sequences, a.q_rows, a.max_q);
  check_offsets(op, "cu_k", a.cu_k, a.sequences, a.k_rows, a.max_k);
}

}  // namespace

void attention_forward_cpu(const Context&, const AttentionArgs& args) {
  check_offsets("attention_forward", args);
  args.dtype == DType::f64 ? forward<double>(args) : forward<float>(args);
}

void attention_backward_cpu(const Context&, const AttentionBackwardArgs& args) {
  check_offsets("attention_backward", args.forward);
  args.forward.dtype == DType::f64 ? backward<double>(args) : backward<float>(args);
}

}  // namespace saturate::kernels
