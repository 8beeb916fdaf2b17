// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/materialised/materialised.h"

#include <fmt/format.h>

#include "kernels/attention/features.h"
#include "kernels/attention/impl.h"
#include "kernels/attention/materialised/row_softmax.h"
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {
namespace {

int64_t align(int64_t n, int64_t to) noexcept { return (n + to - 1) / to * to; }
int64_t bytes_of(int64_t elements, DType type) noexcept {
  return elements * static_cast<int64_t>(size_of(type));
}

// Rows of scores and of probabilities start at multiples of 16 bytes.
int64_t row_stride(const AttentionArgs& a) noexcept { return align(a.max_k, 8); }
int64_t score_bytes(const AttentionArgs& a) noexcept {
  return align(bytes_of(a.sequences * a.heads * a.max_q * row_stride(a), wide_of(a.dtype)), 256);
}

template <class Pointer>
Pointer moved(Pointer p, int64_t elements, DType type) {
  if constexpr (std::is_same_v<Pointer, const void*>)
    return static_cast<const char*>(p) + bytes_of(elements, type);
  else
    return static_cast<char*>(p) + bytes_of(elements, type);
}

// The scores of all heads of one sequence.
MatmulArgs score_product(const AttentionArgs& a, int64_t sequence, void* scores) {
  const int64_t width = row_stride(a);
  return {.a = moved(a.q, sequence * a.max_q * a.q_stride, a.dtype),
          .b = moved(a.k, sequence * a.max_k * a.k_stride, a.dtype),
          .d = moved(scores, sequence * a.heads * a.max_q * width, wide_of(a.dtype)),
          .m = a.max_q,
          .n = a.max_k,
          .k = a.head_size,
          .lda = a.q_stride,
          .ldb = a.k_stride,
          .ldd = width,
          .tb = Transpose::yes,
          .ab_type = a.dtype,
          .d_type = wide_of(a.dtype),
          .alpha = a.scale,
          .batch = a.heads,
          .stride_a = a.head_size,
          .stride_b = a.head_size,
          .stride_d = a.max_q * width};
}

MatmulArgs output_product(const AttentionArgs& a, int64_t sequence, const void* probabilities) {
  const int64_t width = row_stride(a);
  return {.a = moved(probabilities, sequence * a.heads * a.max_q * width, a.dtype),
          .b = moved(a.v, sequence * a.max_k * a.v_stride, a.dtype),
          .d = moved(a.o, sequence * a.max_q * a.o_stride, a.dtype),
          .m = a.max_q,
          .n = a.head_size,
          .k = a.max_k,
          .lda = width,
          .ldb = a.v_stride,
          .ldd = a.o_stride,
          .ab_type = a.dtype,
          .d_type = a.dtype,
          .batch = a.heads,
          .stride_a = a.max_q * width,
          .stride_b = a.head_size,
          .stride_d = a.head_size};
}

}  // namespace

Fit attention_forward_materialised_fits(const Context& ctx, const AttentionArgs& a) noexcept {
  if (!ctx.device.is_cuda() && a.dtype != DType::f32 && a.dtype != DType::f64)
    return {"dtype is neither f32 nor f64"};
  if (ctx.device.is_cuda() && a.dtype == DType::f64)
    return {"dtype is f64, which only the CPU computes"};
  if (a.q_rows != a.sequences * a.max_q || a.k_rows != a.sequences * a.max_k)
    return {"sequences differ in length, or rows lie outside them"};
  if (a.max_q == 0 || a.max_k == 0) return {"there are no queries or no keys"};
  if (a.heads != a.kv_heads) return {"query heads share key heads"};
  if (a.dropout > 0.0f) return {"dropout"};
  if (const Fit f = fits_features(a, kNoFeatures); !f) return f;
  if (a.sequences * a.heads * a.max_q > INT32_MAX) return {"more than 2^31 rows (grid size)"};
  return {};
}

int64_t attention_forward_materialised_scratch(const AttentionArgs& a) noexcept {
  // Where probabilities are as wide as scores they replace them.
  if (a.dtype == wide_of(a.dtype)) return score_bytes(a);
  return score_bytes(a) + score_bytes(a) / 2;
}

void attention_forward_materialised(const Context& ctx, const MaterialisedArgs& args) {
  constexpr const char* op = "attention_forward_materialised";
  const AttentionArgs& a = args.attention;
  check_attention(op, a);
  if (a.q_rows == 0) return;
  if (const Fit f = attention_forward_materialised_fits(ctx, a); !f)
    throw Error(Errc::unsupported, op, f.reason);
  const int64_t needed = attention_forward_materialised_scratch(a);
  if (args.scratch == nullptr || args.scratch_bytes < needed)
    throw Error(Errc::invalid_argument, op,
                fmt::format("scratch has {} bytes, but {} are needed",
                            args.scratch == nullptr ? 0 : args.scratch_bytes, needed));
  const bool in_place = a.dtype == wide_of(a.dtype);
  void* probabilities = static_cast<char*>(args.scratch) + (in_place ? 0 : score_bytes(a));
  for (int64_t s = 0; s < a.sequences; ++s) matmul(ctx, score_product(a, s, args.scratch));
  const RowSoftmaxArgs rows{.s = args.scratch,
                            .p = probabilities,
                            .lse = a.lse,
                            .sequences = a.sequences,
                            .heads = a.heads,
                            .queries = a.max_q,
                            .keys = a.max_k,
                            .stride = row_stride(a),
                            .causal = a.causal,
                            .dtype = a.dtype};
#if SATURATE_WITH_CUDA
  ctx.device.is_cuda() ? row_softmax_cuda(ctx, rows) : row_softmax_cpu(ctx, rows);
#else
  row_softmax_cpu(ctx, rows);
#endif
  for (int64_t s = 0; s < a.sequences; ++s) matmul(ctx, output_product(a, s, probabilities));
}

}  // namespace saturate::kernels
