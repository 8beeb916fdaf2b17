// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/rotary/rotary_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
void rotate(const RotaryArgs& a) {
  const int64_t half = a.head_size / 2;
  std::vector<T> frequency(static_cast<size_t>(half));
  for (int64_t j = 0; j < half; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(a.head_size);
    frequency[static_cast<size_t>(j)] =
        static_cast<T>(slowed_frequency(a, std::pow(static_cast<double>(a.base), exponent)));
  }
  const T sign = a.inverse ? T(-1) : T(1);
  const int64_t grain = std::max<int64_t>(1, 8192 / (a.heads * a.head_size));
  parallel_for(a.rows, grain, [&](int64_t begin, int64_t end) {
    std::vector<T> table(static_cast<size_t>(a.head_size));
    T* cosine = table.data();
    T* sine = cosine + half;
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t j = 0; j < half; ++j) {  // one table serves all heads of the row
        const T angle = static_cast<T>(a.positions[r]) * frequency[static_cast<size_t>(j)];
        cosine[j] = std::cos(angle);
        sine[j] = sign * std::sin(angle);
      }
      for (int64_t h = 0; h < a.heads; ++h) {
        const T* x = static_cast<const T*>(a.x) + r * a.x_stride + h * a.head_size;
        T* y = static_cast<T*>(a.y) + r * a.y_stride + h * a.head_size;
        for (int64_t j = 0; j < half; ++j) {
          const T low = x[j], high = x[j + half];
          y[j] = low * cosine[j] - high * sine[j];
          y[j + half] = high * cosine[j] + low * sine[j];
        }
      }
    }
  });
}

}  // namespace

void rotary_cpu(const Context&, const RotaryArgs& args) {
  args.dtype == DType::f64 ? rotate<double>(args) : rotate<float>(args);
}

}  // namespace saturate::kernels
