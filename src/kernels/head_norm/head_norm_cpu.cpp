// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/head_norm/head_norm_impl.h"
#include "kernels/host/vector_math.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
void normalise(const HeadNormArgs& a) {
  const T* weight = static_cast<const T*>(a.weight);
  const int64_t grain = std::max<int64_t>(1, 8192 / (a.heads * a.head_size));
  parallel_for(a.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < a.heads; ++h) {
        const T* x = static_cast<const T*>(a.x) + r * a.x_stride + h * a.head_size;
        T* y = static_cast<T*>(a.y) + r * a.y_stride + h * a.head_size;
        const T square = lane_sum<T>(a.head_size, [x](int64_t c) { return x[c] * x[c]; });
        const T rstd =
            T(1) / std::sqrt(square / static_cast<T>(a.head_size) + static_cast<T>(a.eps));
        for (int64_t c = 0; c < a.head_size; ++c) y[c] = x[c] * rstd * weight[c];
      }
    }
  });
}

}  // namespace

void head_norm_cpu(const Context&, const HeadNormArgs& args) {
  args.dtype == DType::f64 ? normalise<double>(args) : normalise<float>(args);
}

}  // namespace saturate::kernels
