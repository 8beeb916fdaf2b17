// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cute/cute.h"

#include "kernels/attention/features.h"
#include "kernels/attention/impl.h"

namespace saturate::kernels {

Fit attention_forward_cute_fits(const Context& ctx, const AttentionArgs& a) noexcept {
  if (const Fit f = attention_cute_is_built(); !f) return f;
  if (a.dtype != DType::bf16 && a.dtype != DType::f16) return {"dtype is neither bf16 nor f16"};
  if (a.head_size != 64 && a.head_size != 128) return {"head size is neither 64 nor 128"};
  if (a.dropout > 0.0f) return {"dropout"};
  if (const Fit f = fits_features(a, kNoFeatures); !f) return f;
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (a.k_rows == 0) return {"there are no keys"};
  if (a.q_rows > INT32_MAX / 2 || a.k_rows > INT32_MAX / 2)
    return {"more than 2^30 rows (32-bit coordinates of TMA)"};
  if (!ctx.device.is_cuda()) return {"the CPU does not compute it"};
  if (capability_of(ctx).major != 9) return {"needs compute capability 9.0"};
  return attention_fits_grid(a);
}

void attention_forward_cute(const Context& ctx, const AttentionArgs& args) {
  constexpr const char* op = "attention_forward_cute";
  check_attention(op, args);
  if (const Fit f = attention_forward_cute_fits(ctx, args); !f)
    throw Error(Errc::unsupported, op, f.reason);
  if (args.q_rows == 0) return;
  const auto launch =
      args.head_size == 64 ? attention_forward_cute_d64 : attention_forward_cute_d128;
  launch(ctx, args);
}

}  // namespace saturate::kernels
