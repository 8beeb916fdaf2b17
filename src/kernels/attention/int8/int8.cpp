// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/int8/int8.h"

#include <fmt/format.h>

#include "kernels/attention/features.h"
#include "kernels/attention/impl.h"
#include "kernels/attention/int8/problem.h"

namespace saturate::kernels {

Fit attention_forward_int8_fits(const Context& ctx, const AttentionArgs& a) noexcept {
  if (a.dtype != DType::bf16 && a.dtype != DType::f16) return {"dtype is neither bf16 nor f16"};
  if (a.head_size != 64 && a.head_size != 128) return {"head size is neither 64 nor 128"};
  if (a.dropout > 0.0f) return {"dropout"};
  if (const Fit f = fits_features(a, kNoFeatures); !f) return f;
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (a.q_rows * a.heads > INT32_MAX) return {"more than 2^31 rows of heads (grid size)"};
  if (!ctx.device.is_cuda()) return {"the CPU does not compute it"};
  if (capability_of(ctx).major < 8) return {"the GPU is older than compute capability 8.0"};
  return attention_fits_grid(a);
}

int64_t attention_forward_int8_scratch(const AttentionArgs& args) noexcept {
  return int8_problem(args, nullptr).bytes;
}

void attention_forward_int8(const Context& ctx, const AttentionInt8Args& args) {
  constexpr const char* op = "attention_forward_int8";
  const AttentionArgs& a = args.attention;
  check_attention(op, a);
  if (const Fit f = attention_forward_int8_fits(ctx, a); !f)
    throw Error(Errc::unsupported, op, f.reason);
  const int64_t needed = attention_forward_int8_scratch(a);
  const int64_t given = args.scratch == nullptr ? 0 : args.scratch_bytes;
  if (given < needed)
    throw Error(Errc::invalid_argument, op,
                fmt::format("scratch has {} bytes, but {} are needed", given, needed));
  if (a.q_rows == 0) return;
#if SATURATE_WITH_CUDA
  const Int8Problem p = int8_problem(a, args.scratch);
  attention_int8_prepare_cuda(ctx, p);
  attention_forward_int8_cuda(ctx, p);
#endif
}

}  // namespace saturate::kernels
