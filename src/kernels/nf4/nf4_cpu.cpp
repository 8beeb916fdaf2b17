// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/nf4/nf4_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kBlocksAtOnce = 256;  // by one thread

template <class T>
void dequantize(const Nf4Args& a) {
  const Nf4Parts p = parts_of(a);
  const float* const table = nf4_scale_table().values;
  parallel_for(Nf4Layout(a.count).blocks(), kBlocksAtOnce, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      // Two roundings, as on the GPU: no machine may make one of them.
      const float product = decode_signed(table, p.scales[b]) * p.group_scales[b / kNf4Group];
      const float scale = product + *p.mean;
      T values[16];
      for (size_t i = 0; i < 16; ++i) values[i] = static_cast<T>(kNf4Values[i] * scale);
      const int64_t begin = b * kNf4Block, n = std::min(kNf4Block, a.count - begin);
      const uint8_t* const codes = p.codes + begin / 2;
      T* const w = static_cast<T*>(a.w) + begin;
      for (int64_t i = 0; i + 1 < n; i += 2) {
        w[i] = values[codes[i / 2] >> 4];
        w[i + 1] = values[codes[i / 2] & 15];
      }
      if (n % 2 != 0) w[n - 1] = values[codes[n / 2] >> 4];
    }
  });
}

}  // namespace

void nf4_dequantize_cpu(const Context&, const Nf4Args& args) {
  args.dtype == DType::f64 ? dequantize<double>(args) : dequantize<float>(args);
}

}  // namespace saturate::kernels
