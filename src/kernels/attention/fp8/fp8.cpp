// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/fp8/fp8.h"

#include "kernels/attention/attention_features.h"
#include "kernels/attention/attention_impl.h"

namespace saturate::kernels {
namespace {

bool rows_of_16_bytes(const void* p, int64_t stride) noexcept {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 16 == 0;
}

}  // namespace

Fit attention_forward_fp8_fits(const Context& ctx, const AttentionFp8Args& args) noexcept {
  const AttentionArgs& a = args.attention;
  if (a.dtype != DType::bf16) return {"dtype, which is that of o, is not bf16"};
  if (a.head_size != 64 && a.head_size != 128) return {"head size is neither 64 nor 128"};
  if (a.dropout > 0.0f) return {"dropout"};
  if (const Fit f = fits_features(a, kNoFeatures); !f) return f;
  if (!rows_of_16_bytes(a.q, a.q_stride) || !rows_of_16_bytes(a.k, a.k_stride) ||
      !rows_of_16_bytes(a.v, a.v_stride))
    return {"q, k or v is not aligned to 16 bytes, or its stride is no multiple of 16"};
  if (reinterpret_cast<uintptr_t>(a.o) % 4 != 0 || a.o_stride % 2 != 0)
    return {"o is not aligned to 4 bytes, or its stride is odd"};
  if (!ctx.device.is_cuda()) return {"the CPU does not compute it"};
  if (cuda_compute_major(ctx.device.index) < 9)
    return {"the GPU is older than compute capability 9.0"};
  return attention_fits_grid(a);
}

void attention_forward_fp8(const Context& ctx, const AttentionFp8Args& args) {
  constexpr const char* op = "attention_forward_fp8";
  check_attention(op, args.attention);
  if (const Fit f = attention_forward_fp8_fits(ctx, args); !f)
    throw Error(Errc::unsupported, op, f.reason);
  if (args.attention.q_rows == 0) return;
#if SATURATE_WITH_CUDA
  attention_forward_fp8_cuda(ctx, args);
#endif
}

}  // namespace saturate::kernels
