// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/bf16/matmul_bf16_cpu.h"

#include <memory>

#include "kernels/gemm/bf16/bf16_part.h"
#include "kernels/gemm/cpu_product.h"
#include "runtime/memory.h"

namespace saturate::kernels {
namespace {

using cpu_product::Range;

// Of the calling thread; kept, since it is needed some hundred times a step.
char* scratch() {
  thread_local const Buffer room(Device{}, bf16::kScratchBytes);
  return room.as<char>();
}

void product(const MatmulArgs& x) {
  const bool ta = x.ta == Transpose::yes, tb = x.tb == Transpose::yes;
  const Epilogue& e = x.epilogue;
  cpu_product::share(x, [&](Range rows, Range cols) {
    const auto* a = static_cast<const float*>(x.a) + rows.begin * (ta ? 1 : x.lda);
    const auto* b = static_cast<const float*>(x.b) + cols.begin * (tb ? x.ldb : 1);
    const auto at = [&](auto* data, int64_t ld) {
      return data == nullptr ? nullptr : data + rows.begin * ld + cols.begin;
    };
    bf16::Part p{
        .a = a,
        .b = b,
        .c = at(static_cast<const float*>(x.c), x.ldc),
        .bias = x.bias == nullptr ? nullptr : static_cast<const float*>(x.bias) + cols.begin,
        .d = at(static_cast<float*>(x.d), x.ldd),
        .m = rows.size(),
        .n = cols.size(),
        .k = x.k,
        .lda = x.lda,
        .ldb = x.ldb,
        .ldc = x.ldc,
        .ldd = x.ldd,
        .ta = ta,
        .tb = tb,
        .beta = x.beta,
        .aux = at(static_cast<float*>(e.aux), e.ld_aux),
        .ld_aux = e.ld_aux,
        .scratch = scratch()};
    if (e.kind == EpilogueKind::activation) p.finish = bf16::Finish::relu;
    if (e.kind == EpilogueKind::derivative) p.finish = bf16::Finish::slope;
    bf16::multiply_avx512(p);
  });
}

}  // namespace

bool cpu_has_bf16() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

Fit matmul_bf16_cpu_fits(const Context&, const MatmulArgs& x) noexcept {
  return matmul_bf16_fits(x, cpu_has_bf16());
}

Fit matmul_bf16_fits(const MatmulArgs& x, bool has_bf16) noexcept {
  if (x.ab_type != DType::f32 || !x.allow_bf16) return {"multiplies f32 with allow_bf16 only"};
  if (!has_bf16) return {"this CPU has no AVX512-BF16"};
  if (x.alpha != 1.0f) return {"multiplies by no factor alpha"};
  if (x.k == 0) return {"nothing to multiply (k = 0)"};
  // Six rows and 64 columns are multiplied whatever is there of them.
  if (x.n < 24) return {"fewer than 24 columns, of 64 that are multiplied"};
  return cpu_product::epilogue_fits(x);
}

void matmul_bf16_cpu(const Context& ctx, const MatmulArgs& x) {
  if (x.epilogue.is_plain()) return each_product(x, product);
  if (x.epilogue.activation == ActivationKind::relu) return product(x);
  cpu_product::with_epilogue(ctx, x, product);
}

}  // namespace saturate::kernels
