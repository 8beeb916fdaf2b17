// SPDX-License-Identifier: Apache-2.0
// What one thread multiplies: plain data alone, since it passes into files that are compiled for
// newer processors. No inline function may be shared with those: the linker keeps one copy of it.
#pragma once
#include <cstdint>

namespace saturate::kernels::packed {

constexpr int64_t kPanel = 16;  // columns of y that lie together
// Bytes of a panel that one step multiplies: 16 x 1 f32, 16 x 2 bf16 (the earlier of k in the upper
// half), 16 x 4 s8.
constexpr int64_t kLine = 64;

struct Block {
  const void* x = nullptr;  // rows of the operand as the kernel reads it
  int64_t x_bytes = 0;      // from row to row
  int64_t rows = 0;
  const int32_t* row_of =
      nullptr;                  // which of x and y each of `rows` is; null: they follow each other
  int64_t steps = 0;            // of kLine bytes in a panel
  const char* w = nullptr;      // panels, steps * kLine bytes each
  int64_t first = 0, last = 0;  // panels to multiply
  int64_t n = 0;                // columns of y
  float* y = nullptr;
  int64_t ldy = 0;
  const float* bias = nullptr;  // n or null
  bool relu = false;
  void (*activate)(float* y, int64_t count) = nullptr;  // after the bias; null: none
  // Of int8 alone: a row's scale, and by padded column its scale and 128 times its sum.
  const float* row_scale = nullptr;
  const float* column_scale = nullptr;
  const int32_t* column_offset = nullptr;
  const int32_t* row_offset = nullptr;  // AVX2: what each row's sums lack
};

using Kernel = void (*)(const Block&);
void f32_plain(const Block& b);
void s8_plain(const Block& b);  // x is s16
void f32_avx2(const Block& b);
void f32_avx512(const Block& b);
// x is four |x| and four bytes with all bits set where x is negative, by turns; no x is negative where the second runs.
void s8_avx2(const Block& b);
void s8_avx2_positive(const Block& b);
void s8_avx512_vnni(const Block& b);  // x is u8, 128 more than the value
void s8_amx(const Block& b);          // the same; steps is a multiple of 16
// x is f32 that bf16 holds, pairs whole.
void bf16_plain(const Block& b);
void bf16_avx2(const Block& b);
void bf16_avx512(const Block& b);
// x is bf16, pairs as in a panel.
void bf16_dot(const Block& b);
void bf16_amx(const Block& b);  // steps is a multiple of 16

// The largest |x| of `count` numbers as its bits, so that infinity and what is no number win.
int32_t largest_bits_avx512(const float* x, int64_t count);
// q = 128 + x * factor to the nearest, and 128 from `count` to `stride`. |x * factor| < 2^22.
void round_row_avx512(const float* x, int64_t count, float factor, int64_t stride, uint8_t* q);
// x * factor to the nearest as s8_avx2() reads it, 64 bytes for each 32 numbers begun; |x * factor| <= 127. Returns
// the sum of |q| where q is negative.
int32_t round_row_signs(const float* x, int64_t count, float factor, char* to);
// Pairs of bf16 as in a panel, and zeros from `count` to `stride`, which is a multiple of 32.
void round_row_bf16(const float* x, int64_t count, int64_t stride, uint16_t* q);

}  // namespace saturate::kernels::packed
