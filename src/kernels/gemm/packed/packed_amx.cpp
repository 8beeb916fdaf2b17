// SPDX-License-Identifier: Apache-2.0
// Products of packed int8 and bf16 weights with AMX. Compiled for such processors: see packed_block.h.
#if defined(__x86_64__)
#include "kernels/gemm/packed/packed_bf16.h"
#include "kernels/gemm/packed/packed_sums.h"
#include "kernels/gemm/packed/packed_tiles.h"

namespace saturate::kernels::packed {
namespace {

struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct Amx {
  // Rows of the tiles that multiply_tiles() names.
  static void configure(int64_t upper, int64_t lower) {
    Shapes s;
    for (int t = 0; t < 8; ++t) s.row_bytes[t] = 64;
    s.rows[0] = s.rows[1] = s.rows[4] = static_cast<uint8_t>(upper);
    s.rows[2] = s.rows[3] = s.rows[5] = static_cast<uint8_t>(lower > 0 ? lower : 1);
    s.rows[6] = s.rows[7] = 16;
    // GCC's _tile_loadconfig names the first eight bytes alone, so that the compiler leaves the others out.
    asm volatile("ldtilecfg %0" ::"m"(s));
  }
  // GCC's intrinsics are macros that want a tile's number as text.
  template <int T>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  static void load(const char* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static void store(void* to) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(T) : "memory");
  }
};

struct AmxBytes : Amx {
  using Sum = int32_t;
  template <int S, int X, int W>
  static void dot() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(S), "i"(X), "i"(W));
  }
};

struct AmxBf16 : Amx {
  using Sum = float;
  template <int S, int X, int W>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(S), "i"(X), "i"(W));
  }
};

}  // namespace

void s8_amx(const Block& b) {
  AmxBytes tiles;
  multiply_by_tiles<AmxBytes, Sums8>(tiles, b);
  _tile_release();
}

void bf16_amx(const Block& b) {
  const NoDenormals zeros;
  AmxBf16 tiles;
  multiply_by_tiles<AmxBf16, SumsF32>(tiles, b);
  _tile_release();
}

}  // namespace saturate::kernels::packed
#endif  // x86-64
