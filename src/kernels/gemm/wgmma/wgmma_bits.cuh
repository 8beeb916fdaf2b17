// SPDX-License-Identifier: Apache-2.0
// relu's slopes, a bit for each element: kept by the forward product, and applied to the results of the one that sends
// gradients back. A tile's threads hold the same elements in both, so that each writes and reads its own bits, 1/16 of
// the bytes of the values.
//
// A word of 64 bits is 64 neighbouring columns of a row; bit 16 q + 8 e + j of it is column 8 j + 2 q + e, so that its
// quarter q is what lane q of the quad holds that has the row. Words do not depend on the tile.
#pragma once
#include <type_traits>

#include "kernels/gemm/wgmma/wgmma_launch.cuh"
#include "kernels/gemm/wgmma/wgmma_sums.cuh"

namespace saturate::kernels::wgmma {

// Transposes a 4 x 4 matrix of 16-bit values whose row t the two registers of lane t of a quad hold.
__device__ inline void transpose_quad(uint32_t (&v)[2]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  const uint32_t got = __shfl_xor_sync(~0u, high ? v[0] : v[1], 2);
  (high ? v[0] : v[1]) = got;
  // Now v[i] is of lane 2 i + odd and has the columns of this lane's pair.
  const uint32_t keep = odd ? 0x7632 : 0x5410, send = odd ? 0x5410 : 0x7632;
  const uint32_t mine = __byte_perm(v[0], v[1], keep);
  const uint32_t other = __shfl_xor_sync(~0u, __byte_perm(v[0], v[1], send), 1);
  const uint32_t even_rows = odd ? other : mine, odd_rows = odd ? mine : other;
  v[0] = __byte_perm(even_rows, odd_rows, 0x5410);
  v[1] = __byte_perm(even_rows, odd_rows, 0x7632);
}

// All bits of each of two 16-bit values that is above zero.
template <class T>
__device__ inline uint32_t above_zero(uint32_t two) {
  if constexpr (std::is_same_v<T, __half>) {
    return __hgt2_mask(reinterpret_cast<const __half2&>(two), __half2{});
  } else {
    return __hgt2_mask(reinterpret_cast<const __nv_bfloat162&>(two), __nv_bfloat162{});
  }
}

// The word that this lane of a quad reads or writes, of row `i` of 2 kMmas of its rows: of the quad's lane's 64 columns,
// of four words at most. At `p.c`, rows of `p.ldc` words.
template <class P>
struct WordOfThread {
  uint2* at;
  bool inside;
  __device__ WordOfThread(const Problem& p, const Unit& x, int row, int i) {
    const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32, g = lane % 4;
    const int r = x.m + row + i / 2 * 64 + thread / 32 * 16 + lane / 4 + i % 2 * 8;
    inside = r < p.m && g < P::kN / 64 && x.n + g * 64 < p.n;
    at = static_cast<uint2*>(const_cast<void*>(p.c)) + int64_t{r} * p.ldc + x.n / 64 + g;
  }
};

// relu of a tile's sums, as write_halves() writes them, and at `p.c` (null: nowhere) which are above zero when rounded.
template <class P>
__device__ inline void store_relu(const Problem& p, const float (&sum)[P::kMmas][P::kN / 2],
                                  const Unit& x, int row) {
  using T = typename P::Out;
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
#pragma unroll
  for (int i = 0; i < P::kMmas * 2; ++i) {
    const int r = x.m + row + i / 2 * 64 + thread / 32 * 16 + lane / 4 + i % 2 * 8;
    T* const line = static_cast<T*>(p.out) + r * p.ldd + x.n + lane % 4 * 8;
    uint32_t bits[2] =
        {};  // bytes: of 64 columns and the next, the even columns of each pair, then the odd
#pragma unroll
    for (int g = 0; g < P::kN / 32; ++g) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const two = &sum[i / 2][(g * 4 + j) * 4 + i % 2 * 2];
        v[j] = pack<T>(two[0], two[1]);
        const uint32_t above = above_zero<T>(v[j]);
        v[j] &= above;
        bits[g / 4] |= above & 0x00010001u << (g % 4 * 4 + j);
      }
      transpose_quad(v);
      if (r < p.m && x.n + g * 32 + lane % 4 * 8 < p.n)
        *reinterpret_cast<uint4*>(line + g * 32) = make_uint4(v[0], v[1], v[2], v[3]);
      asm volatile("" : "+r"(bits[g / 4])::"memory");  // more at a time would not fit
    }
    if (p.c == nullptr) continue;
    for (uint32_t& b : bits) b = __byte_perm(b, 0, 0x3120);
    transpose_quad(bits);
    if (const WordOfThread<P> to(p, x, row, i); to.inside) *to.at = make_uint2(bits[0], bits[1]);
  }
}

// A tile's bits: a row of the thread's has its quarters of four words. Loaded before the product, so that nobody waits
// for them after.
template <class P>
struct TileBits {
  uint32_t quarters[P::kMmas * 2][2];
  __device__ TileBits(const Problem& p, const Unit& x, int row) {
#pragma unroll
    for (int i = 0; i < P::kMmas * 2; ++i) {
      const WordOfThread<P> from(p, x, row, i);
      const uint2 word = from.inside ? *from.at : make_uint2(0, 0);
      quarters[i][0] = word.x;
      quarters[i][1] = word.y;
    }
  }
  // The other lanes' quarters are swapped for this lane's where they are needed first.
  __device__ void arrive() {
#pragma unroll
    for (int i = 0; i < P::kMmas * 2; ++i) transpose_quad(quarters[i]);
  }
};

// A tile of the input gradient times relu's slopes, with the sums of its columns.
template <class T, bool kPingPong_>
struct BitsTile : Tile<T, T, kEpilogueTileM, kPingPong_ ? kTurnTileN : kSharedTileN,
                       kPingPong_ ? 5 : 4, kPingPong_, true, false> {
  using Base = Tile<T, T, kEpilogueTileM, kPingPong_ ? kTurnTileN : kSharedTileN,
                    kPingPong_ ? 5 : 4, kPingPong_, true, false>;
  static constexpr bool kTakesBits = true;
  // Column sums of a consumer's four warps. Consumers that share tiles have two sets of them, taken in turns.
  static constexpr int kSets = kPingPong_ ? 1 : 2, kSums = 4 * Base::kN;
  static constexpr uint32_t kSumsAt = Base::kBarriersAt + (Base::kStages * 16 + 127) / 128 * 128;
  static constexpr uint32_t kSharedBytes = kSumsAt + 2 * kSets * kSums * 4 + 1024;
  static_assert(kSharedBytes <= 232448);
};

// sum = alpha sum where its bit is set, else 0; the sums of this warp's columns before they round go to `sums` (null:
// none).
template <class P>
__device__ inline void take_bits(const Problem& p, float (&sum)[P::kMmas][P::kN / 2],
                                 TileBits<P>& bits, float* sums) {
  bits.arrive();
#pragma unroll
  for (int g = 0; g < P::kN / 32; ++g) {
    float column[8] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < P::kMmas * 2; ++i) {
        float* const two = &sum[i / 2][(g * 4 + j) * 4 + i % 2 * 2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t bit = 1u << (g / 2 % 2 * 16 + e * 8 + g % 2 * 4 + j);
          two[e] = bits.quarters[i][g / 4] & bit ? two[e] * p.alpha : 0.0f;
          column[j * 2 + e] += two[e];
        }
      }
    }
    if (sums != nullptr)
      sums[threadIdx.x % 128 / 32 * P::kN + g * 32 + lane_column()] = fold_rows(column);
  }
}

// The same and the tile's column sums to memory, from `room` of this consumer; `index` counts its tiles.
template <class P>
__device__ inline void take_bits_and_sum(const Problem& p, float (&sum)[P::kMmas][P::kN / 2],
                                         TileBits<P>& bits, const Unit& x, int row, int consumer,
                                         int index, float* room) {
  constexpr int kDone = 3;  // named barriers, one a consumer
  float* const sums = p.partial == nullptr ? nullptr : room + index % P::kSets * P::kSums;
  take_bits<P>(p, sum, bits, sums);
  if (sums == nullptr) return;
  // By turns, the next tile's sums wait for this consumer's turn, where all its threads meet. Of shared tiles, those of
  // the tile after the next wait behind the next one's barrier, which nobody reaches before it has read these.
  named_sync(kDone + consumer, 128);
  write_sums<P>(p, x, row, sums);
}

template <class T, bool kPingPong>
cudaError_t launch_with_bits(const Problem& p, int blocks, cudaStream_t stream) {
  return launch<BitsTile<T, kPingPong>>(p, blocks, stream);
}

}  // namespace saturate::kernels::wgmma
