// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/flat.cuh"
#include "kernels/nf4/nf4_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

struct Nf4Tables {
  Nf4ScaleTable scales;
  float values[16];
};

// A thread has 8 neighbours, which lie in one block: 4 bytes of codes and one access of 16 or two.
template <class T>
struct Dequantize {
  Nf4Parts p;
  T* w;
  Nf4Tables tables;

  template <int N>
  __device__ void at(int64_t first) const {
    const int64_t block = first / kNf4Block;
    // No fused product and sum: the CPU's bits.
    const float scale = __fadd_rn(__fmul_rn(decode_signed(tables.scales.values, p.scales[block]),
                                            p.group_scales[block / kNf4Group]),
                                  *p.mean);
    float x[N];
    if constexpr (N == 1) {
      const uint32_t pair = p.codes[first / 2];
      x[0] = __fmul_rn(tables.values[first % 2 == 0 ? pair >> 4 : pair & 15], scale);
      w[first] = from_float<T>(x[0]);
    } else {
      static_assert(N == 8);
      const uint32_t codes = *reinterpret_cast<const uint32_t*>(p.codes + first / 2);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int shift = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);
        x[i] = __fmul_rn(tables.values[codes >> shift & 15], scale);
      }
      store<N>(w + first, x);
    }
  }
};

}  // namespace

void nf4_dequantize_cuda(const Context& ctx, const Nf4Args& a) {
  Nf4Tables tables{.scales = nf4_scale_table(), .values = {}};
  for (size_t i = 0; i < kNf4Values.size(); ++i) tables.values[i] = kNf4Values[i];
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const w = static_cast<T*>(a.w);
    launch_flat(ctx, "nf4_dequantize_kernel", a.count, aligned16(w),
                Dequantize<T>{parts_of(a), w, tables});
  });
}

}  // namespace saturate::kernels
