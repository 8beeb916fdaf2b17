// SPDX-License-Identifier: Apache-2.0
// Dropout of 16 x 16 scores in a tensor core's results: two fragments of eight columns, f = 0
// and 1. Element e of fragment f has its number in half e % 2 of word 2 f + e / 2, whichever of
// queries and keys lies in rows (dropout.h says which numbers these are).
#pragma once
#include "kernels/attention/device.cuh"
#include "kernels/attention/dropout.h"
#include "kernels/device/mma.cuh"

namespace saturate::kernels::attention {

// What names an operation's random numbers; made once a thread, because it reads device memory.
struct DropoutBits {
  uint64_t seed = 0, micro_step = 0;
  uint32_t op = 0, least = 0;  // least 0: nothing is dropped

  __device__ __forceinline__ DropoutBits(RngRef rng, float p, bool drops) {
    if (!drops) return;
    seed = rng.state[0], micro_step = rng.state[1];
    op = rng.site, least = attention_dropout_least(p);
  }
  __device__ __forceinline__ Random4 block(uint64_t number) const {
    return random_block(seed, micro_step, op, number);
  }
  // Queries in rows. `first`: random_row of the first query plus a quarter of the first key.
  __device__ __forceinline__ void draw_rows(uint32_t (&words)[4], uint64_t first) const {
    const auto l = static_cast<uint64_t>(lane());
    const Random4 r = block(first + (l / 4 << 14) + l % 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = r.x[i];
  }
  // Keys in rows. Lanes of two neighbouring keys share the blocks of two neighbouring queries: the
  // even key's draws that of the even query, the odd key's the other, and each hands over what the
  // other's key needs.
  __device__ __forceinline__ void draw_columns(uint32_t (&words)[4], uint64_t first) const {
    const auto l = static_cast<uint32_t>(lane()), odd = l / 4 % 2;
    const Random4 r = block(first + (static_cast<uint64_t>(l % 4 * 2 + odd) << 14) + l / 8);
    const uint32_t others = odd ? 0x5410 : 0x7632;  // halves of the other's key
    const uint32_t even = odd ? 0x3254 : 0x5410, uneven = odd ? 0x3276 : 0x7610;
    uint32_t theirs[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      theirs[h] = __shfl_xor_sync(~0u, __byte_perm(r.x[2 * h], r.x[2 * h + 1], others), 4);
      // Words of the block run over queries eight apart first, those of the results over keys.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      words[h] = __byte_perm(r.x[2 * h], theirs[h], even);
      words[2 + h] = __byte_perm(r.x[2 * h + 1], theirs[h], uneven);
    }
  }
  // Positive half-precision numbers have the order of their bits as integers up to infinity, and
  // what is beyond is no number, which these comparisons let pass. So one instruction compares both
  // halves of a word, for p up to kAttentionDropoutPairs.

  // Two elements of one word become 0 or stay as they are.
  __device__ __forceinline__ void drop_pair(float& x, float& y, uint32_t word) const {
    asm("{.reg .pred p, q;\n .reg .b32 magnitude;\n"
        "abs.f16x2 magnitude, %2;\n"
        "setp.geu.f16x2 p|q, magnitude, %3;\n"
        "selp.f32 %0, %0, 0f00000000, p;\n"
        "selp.f32 %1, %1, 0f00000000, q;}"
        : "+f"(x), "+f"(y)
        : "r"(word), "r"(least << 16 | least));
  }
  // 0xFFFF in the halves whose elements are kept. Volatile: after the products that run beside it.
  __device__ __forceinline__ uint32_t kept_halves(uint32_t word) const {
    uint32_t kept;
    asm volatile(
        "{.reg .b32 magnitude;\n"
        "abs.f16x2 magnitude, %1;\n"
        "set.geu.u32.f16x2 %0, magnitude, %2;}"
        : "=r"(kept)
        : "r"(word), "r"(least << 16 | least));
    return kept;
  }
  // Whether element e of fragment f is kept.
  __device__ __forceinline__ bool keeps(const uint32_t (&words)[4], int f, int e) const {
    return attention_dropout_reaches(words[2 * f + e / 2], e, least);
  }
};

}  // namespace saturate::kernels::attention
