// SPDX-License-Identifier: Apache-2.0
// NF4: 4-bit codes of weights that stay as they are, the quantiles of a normal distribution, with a scale
// for each 64 of them, and these scales in 8 bits (Dettmers et al., arXiv:2305.14314, sections 3 and E).
#pragma once
#include <array>
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

constexpr int64_t kNf4Block = 64;   // weights of one scale
constexpr int64_t kNf4Group = 256;  // scales of one scale of scales
constexpr int64_t kNf4Align = 256;  // bytes

constexpr std::array<float, 16> kNf4Values = {-1.0f,
                                              -0.6961928009986877f,
                                              -0.5250730514526367f,
                                              -0.39491748809814453f,
                                              -0.28444138169288635f,
                                              -0.18477343022823334f,
                                              -0.09105003625154495f,
                                              0.0f,
                                              0.07958029955625534f,
                                              0.16093020141124725f,
                                              0.24611230194568634f,
                                              0.33791524171829224f,
                                              0.44070982933044434f,
                                              0.5626170039176941f,
                                              0.7229568362236023f,
                                              1.0f};

// Where the parts of one tensor of `count` weights lie, in bytes: the scales of scales and behind them
// the mean of the scales (f32), the scales' codes, and the weights' codes, two in a byte, the first in the high half.
struct Nf4Layout {
  int64_t count = 0;
  explicit constexpr Nf4Layout(int64_t weights) noexcept : count(weights) {}
  constexpr int64_t blocks() const noexcept { return (count + kNf4Block - 1) / kNf4Block; }
  constexpr int64_t groups() const noexcept { return (blocks() + kNf4Group - 1) / kNf4Group; }
  constexpr int64_t scales_at() const noexcept { return 4 * (groups() + 1); }
  constexpr int64_t codes_at() const noexcept {
    return (scales_at() + blocks() + 15) / 16 * 16;  // for 16-byte accesses
  }
  // 4.13 bits a weight where there are many.
  constexpr int64_t bytes() const noexcept {
    return (codes_at() + (count + 1) / 2 + kNf4Align - 1) / kNf4Align * kNf4Align;
  }
};

// Each weight to the nearest value of its block, whose scale is the largest magnitude in it; of two that
// are as near, to the lower. What is written is a function of the weights alone, the same on every machine and
// for any number of threads; scales differ from bitsandbytes' in the last bits of their mean.
//
// Shapes    w (count), held (Nf4Layout(count).bytes()), both in host memory.
// Errors    invalid_argument for a weight that is not finite.
// Cost      one read of w.
// Source    bitsandbytes, quantize_4bit with quant_type "nf4" and compress_statistics.
void nf4_quantize(const float* w, int64_t count, void* held);

// w[i] = value of code i * scale of its block
//
// Shapes    held (Nf4Layout(count).bytes()), on 16 bytes; w (count).
// Types     w in dtype; products and sums in f32.
// Aliasing  none.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     element by element: the same bits on every device, but for the rounding to dtype none depends on it.
// Errors    invalid_argument for sizes, pointers and types; unsupported when no implementation fits;
//           device.
// Cost      memory traffic: 0.52 bytes read and one element written a weight.
// Source    bitsandbytes, dequantize_4bit.
struct Nf4Args {
  const void* held = nullptr;
  void* w = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;
};
void nf4_dequantize(const Context& ctx, const Nf4Args& args);

}  // namespace saturate::kernels
