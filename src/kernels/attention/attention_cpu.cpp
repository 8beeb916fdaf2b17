// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "kernels/attention/attention_cpu_kernel.h"
#include "kernels/attention/attention_impl.h"
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

// Calls item(sequence, head, scratch) for all of them on all threads.
template <class T, class Item>
void for_each_head(const AttentionArgs& a, int64_t heads, const Item& item) {
  const auto elements = static_cast<size_t>(Kernels<T>::scratch_elements(a.max_k, a.head_size));
  parallel_for(a.sequences * heads, 1, [&](int64_t begin, int64_t end) {
    const Buffer scratch(Device{}, elements * sizeof(T));
    for (int64_t n = begin; n < end; ++n) item(n / heads, n % heads, scratch.as<T>());
  });
}

template <class T>
void forward(const AttentionArgs& a) {
  for_each_head<T>(
      a, a.heads, [&](int64_t s, int64_t h, T* scratch) { Kernels<T>::forward(a, s, h, scratch); });
  const int64_t used = a.cu_q[a.sequences];
  zero_tail<T>(a.o, used, a.q_rows, a.o_stride, a.heads * a.head_size);
  for (int64_t h = 0; h < a.heads; ++h)
    std::fill_n(static_cast<T*>(a.lse) + h * a.q_rows + used, a.q_rows - used, T(0));
}

template <class T>
void backward(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  for_each_head<T>(a, a.kv_heads, [&](int64_t s, int64_t kv, T* scratch) {
    Kernels<T>::backward(b, s, kv, scratch);
  });
  const int64_t width = a.kv_heads * a.head_size;
  zero_tail<T>(b.d_q, a.cu_q[a.sequences], a.q_rows, b.d_q_stride, a.heads * a.head_size);
  zero_tail<T>(b.d_k, a.cu_k[a.sequences], a.k_rows, b.d_k_stride, width);
  zero_tail<T>(b.d_v, a.cu_k[a.sequences], a.k_rows, b.d_v_stride, width);
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
