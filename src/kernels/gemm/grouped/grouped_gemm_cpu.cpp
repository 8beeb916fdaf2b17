// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/gemm/grouped/grouped_gemm_impl.h"
#include "kernels/gemm/matmul.h"
#include "kernels/host/validate.h"

namespace saturate::kernels {

Fit grouped_gemm_cpu_fits(const Context&, const GroupedGemmArgs& x) noexcept {
  return fits_cpu(x.dtype);
}

void grouped_gemm_cpu(const Context& ctx, const GroupedGemmArgs& x) {
  const auto size = static_cast<int64_t>(size_of(x.dtype));
  const auto at = [&](const void* p, int64_t elements) {
    return p == nullptr ? p : static_cast<const char*>(p) + elements * size;
  };
  const bool weights = x.form == GroupedForm::weight_gradient;
  const bool forward = x.form == GroupedForm::forward;
  for (int64_t g = 0; g < x.groups; ++g) {
    const int64_t first = std::clamp<int64_t>(x.offsets[g], 0, x.rows);
    const int64_t rows = std::clamp<int64_t>(x.offsets[g + 1], first, x.rows) - first;
    const int64_t from_a = first * (forward ? x.k : x.n);
    const int64_t from_b = weights ? first * x.k : g * x.n * x.k;
    const int64_t to = weights ? g * x.n * x.k : first * (forward ? x.n : x.k);
    void* d = static_cast<char*>(x.d) + to * size;
    const int64_t columns = forward ? x.n : x.k;
    matmul(ctx, {.a = at(x.a, from_a),
                 .b = at(x.b, from_b),
                 .c = d,
                 .d = d,
                 .m = weights ? x.n : rows,
                 .n = columns,
                 .k = weights ? rows : (forward ? x.k : x.n),
                 .lda = forward ? x.k : x.n,
                 .ldb = x.k,
                 .ldc = columns,
                 .ldd = columns,
                 .ta = weights ? Transpose::yes : Transpose::no,
                 .tb = forward ? Transpose::yes : Transpose::no,
                 .ab_type = x.dtype,
                 .d_type = x.dtype,
                 .beta = weights ? x.beta : 0.0f});
  }
}

}  // namespace saturate::kernels
