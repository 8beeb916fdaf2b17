// SPDX-License-Identifier: Apache-2.0
// D = alpha op(A) op(B) + beta C + bias on Hopper's tensor cores, operands of 16 bits, sums in
// fp32.
//
// One block an SM stays for the whole product (persistent). Its first warpgroup has one thread at
// work, the producer: it asks TMA for tiles of A and B, kStages ahead. Two consumer
// warpgroups multiply (wgmma reads both operands from shared memory) and write the result.
//   cooperative  both consumers share a tile, each half of its rows: largest tile, least traffic.
//   ping-pong    each consumer has a tile of its own; while one multiplies the other writes. For
//                short sums (small K), where writing is a large share.
// Blocks work in pairs (a cluster): two tiles, one below the other, need the same columns of B, so
// each block loads half of them and TMA delivers to both.
//
// The order of every sum is fixed by the shape, so results repeat bit for bit.
#pragma once
#include "kernels/gemm/wgmma/wgmma_parts.cuh"
#include "kernels/gemm/wgmma/wgmma_problem.h"
#include "kernels/gemm/wgmma/wgmma_result.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace saturate::kernels::wgmma {

constexpr int kThreads = 384;  // a producer and two consumer warpgroups
constexpr int kCluster = 2;

// Shape and schedule of a tile. kKMajorX: consecutive elements of the operand in memory follow k.
// kParts: 2 for fp32 operands cut in two, see multiply_parts().
template <class T_, class Out_, int kM_, int kN_, int kStages_, bool kPingPong_, bool kKMajorA_,
          bool kKMajorB_, int kParts_ = 1>
struct Tile {
  using T = T_;
  using Out = Out_;
  using Bias = std::conditional_t<kParts_ == 1, T_, Out_>;
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_, kParts = kParts_;
  static constexpr bool kPingPong = kPingPong_, kKMajorA = kKMajorA_, kKMajorB = kKMajorB_;
  static constexpr int kRows = kPingPong ? kM : kM / 2;  // of one consumer
  static constexpr int kMmas = kRows / 64;
  static constexpr uint32_t kBytesA = kM * kTileK * 2, kBytesB = kN * kTileK * 2;
  static constexpr uint32_t kStageBytes = kParts * (kBytesA + kBytesB);
  static constexpr uint32_t kBarriersAt = kStages * kStageBytes;
  // A block has what it was launched with, 3 x 168: asking for more waits for ever. A producer whose
  // operands go by four or more boxes of 64 x 64 needs more than one of whole tiles.
  static constexpr bool kFewBoxes = kKMajorA && (kKMajorB || (kN < 256 && kParts_ == 1));
  static constexpr int kProducerRegisters = kFewBoxes ? 40 : 56;
  static constexpr int kConsumerRegisters = kFewBoxes ? 232 : 224;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * 168);
  // 1024 more, because TMA's swizzle wants that alignment.
  static constexpr uint32_t kSharedBytes = kBarriersAt + kStages * 16 + 1024;
  static_assert(kSharedBytes <= 232448 && kMmas * kN <= 512 - 128);
};

// Tiles of forward products that end in work on their results of 16 bits: ping-pong where a block has several, so
// that one consumer multiplies while the other works.
template <class T, bool kPingPong>
using EpilogueTile = Tile<T, T, kEpilogueTileM, kPingPong ? kTurnTileN : kSharedTileN,
                          kPingPong ? 5 : 4, kPingPong, true, true>;

// Which tile and which part of the sum unit `u` is. Tiles go in bands of `band` pairs of tile rows,
// so that the blocks at work together touch a near-square part of the result and share their
// operands in L2.
struct Unit {
  int m, n, first_k, last_k, split;
};
template <class P>
__device__ inline Unit unit_of(const Problem& p, int u, uint32_t rank) {
  const int tiles = p.pairs_m * p.tiles_n;
  Unit x;
  x.split = u / tiles;
  const int t = u % tiles, per_band = p.band * p.tiles_n, band = t / per_band;
  const int rows = min(p.band, p.pairs_m - band * p.band), in_band = t % per_band;
  x.m = ((band * p.band + in_band % rows) * kCluster + static_cast<int>(rank)) * P::kM;
  x.n = in_band / rows * P::kN;
  x.first_k = x.split * p.split_blocks;
  x.last_k = min(p.k_blocks, x.first_k + p.split_blocks);
  return x;
}

// By one thread, before the cluster meets: a stage is full when its bytes have come and empty when
// `readers` warpgroups of both blocks have released it.
template <class P, class AnyProblem>
__device__ inline void open_pipeline(const AnyProblem& p, uint32_t full, uint32_t empty,
                                     uint32_t readers) {
  prefetch_map(p.a);
  prefetch_map(p.b);
  for (int s = 0; s < P::kStages; ++s) {
    barrier_init(full + s * 8, 1);
    barrier_init(empty + s * 8, readers * kCluster);
  }
  barrier_init_fence();
}

// The loads of block `kb` of k of a unit; `step` counts blocks since the launch.
template <class P>
__device__ inline void produce_block(const Problem& p, const Unit& x, int kb, uint32_t step,
                                     uint32_t tiles, uint32_t full, uint32_t empty, uint32_t rank) {
  const uint32_t stage = step % P::kStages, round = step / P::kStages;
  const uint32_t bar = full + stage * 8;
  barrier_wait(empty + stage * 8, (round & 1) ^ 1);
  barrier_expect(bar, P::kStageBytes);
#pragma unroll
  for (int part = 0; part < P::kParts; ++part) {
    const uint32_t a = tiles + stage * P::kStageBytes + part * P::kBytesA;
    const uint32_t b = tiles + stage * P::kStageBytes + P::kParts * P::kBytesA + part * P::kBytesB;
    const int k = kb * kTileK + part * p.part_k;
    if constexpr (P::kKMajorA) {
      load_box<false>(a, p.a, bar, k, x.m);
    } else {
#pragma unroll
      for (int i = 0; i < P::kM / 64; ++i) load_box<false>(a + i * 8192, p.a, bar, x.m + i * 64, k);
    }
    if constexpr (P::kKMajorB) {
      const int half = static_cast<int>(rank) * (P::kN / 2);
      load_box<true>(b + half * 128, p.b, bar, k, x.n + half);
    } else {
      const int half = static_cast<int>(rank) * (kTileK / 2);
#pragma unroll
      for (int i = 0; i < P::kN / 64; ++i)
        load_box<true>(b + i * 8192 + half * 128, p.b, bar, x.n + i * 64, k + half);
    }
  }
}
template <class P>
__device__ inline void produce_unit(const Problem& p, const Unit& x, uint32_t& step, uint32_t tiles,
                                    uint32_t full, uint32_t empty, uint32_t rank) {
  for (int kb = x.first_k; kb < x.last_k; ++kb, ++step)
    produce_block<P>(p, x, kb, step, tiles, full, empty, rank);
}

template <class P>
__device__ inline void produce(const Problem& p, uint32_t tiles, uint32_t full, uint32_t empty,
                               uint32_t rank) {
  uint32_t step = 0;
  for (int u = blockIdx.x / kCluster; u < p.units; u += gridDim.x / kCluster)
    produce_unit<P>(p, unit_of<P>(p, u, rank), step, tiles, full, empty, rank);
}

// Frees the stage of block of k `step` for the producers of both blocks, which both fill it.
template <class P>
__device__ inline void release(uint32_t empty, uint32_t step) {
  const uint32_t thread = threadIdx.x % 128;
  if (thread < kCluster) barrier_arrive_at(empty + step % P::kStages * 8, thread);
}

// Sums of one tile's rows. `step` counts blocks of k since the launch, as the producer does.
// `arrived(i, stage)` may change what block i of k brought before it is multiplied.
struct AsItIs {
  __device__ void operator()(int, uint32_t) const {}
};
template <class P, class Arrived = AsItIs>
__device__ inline void multiply(float (&sum)[P::kMmas][P::kN / 2], int blocks, uint32_t step,
                                int row, uint32_t tiles, uint32_t full, uint32_t empty,
                                const Arrived& arrived = {}) {
  // Steps through an operand: by 16 values of k, and by 64 rows of A.
  constexpr uint32_t kStepA = P::kKMajorA ? 32 : 2048, kStepB = P::kKMajorB ? 32 : 2048;
  const uint32_t a0 = descriptor_low(tiles + row * 128, P::kKMajorA ? 16 : 8192);
  const uint32_t b0 = descriptor_low(tiles + P::kBytesA, P::kKMajorB ? 16 : 8192);
  for (int i = 0; i < blocks; ++i, ++step) {
    const uint32_t stage = step % P::kStages, at = stage * (P::kStageBytes / 16);
    barrier_wait(full + stage * 8, step / P::kStages & 1);
    arrived(i, tiles + stage * P::kStageBytes);
    mma_fence();
#pragma unroll
    for (int kk = 0; kk < kTileK / 16; ++kk) {
      const uint64_t b = descriptor(b0 + at + kk * kStepB / 16, 1024);
#pragma unroll
      for (int q = 0; q < P::kMmas; ++q) {
        const uint64_t a = descriptor(a0 + at + (q * 8192 + kk * kStepA) / 16, 1024);
        mma<typename P::T, P::kN, !P::kKMajorA, !P::kKMajorB>(sum[q], a, b, i | kk);
      }
    }
    mma_commit();
    if (i > 0) {
      mma_wait<1>();
      release<P>(empty, step - 1);
    }
  }
  mma_wait<0>();
  if (blocks > 0) release<P>(empty, step - 1);
#pragma unroll
  for (int q = 0; q < P::kMmas; ++q) settle(sum[q]);
}

// The same for operands in two parts. Of the four products of parts that of both low ones, below 2^-22 of
// the whole, is left out. The tensor cores cut sums off instead of rounding them, an error that
// grows with the sum; so every block of k is summed from zero, high products apart from the others,
// and added here. While one consumer adds, the other multiplies.
template <class P>
__device__ inline void multiply_parts(float (&sum)[P::kN / 2], int blocks, uint32_t step, int row,
                                      uint32_t tiles, uint32_t full, uint32_t empty) {
  constexpr uint32_t kStepA = P::kKMajorA ? 32 : 2048, kStepB = P::kKMajorB ? 32 : 2048;
  const uint32_t a0 = descriptor_low(tiles + row * 128, P::kKMajorA ? 16 : 8192);
  const uint32_t b0 = descriptor_low(tiles + 2 * P::kBytesA, P::kKMajorB ? 16 : 8192);
  float high[P::kN / 2], cross[P::kN / 2];
#pragma unroll
  for (int j = 0; j < P::kN / 2; ++j) sum[j] = 0;
  for (int i = 0; i < blocks; ++i, ++step) {
    const uint32_t stage = step % P::kStages, at = stage * (P::kStageBytes / 16);
    barrier_wait(full + stage * 8, step / P::kStages & 1);
    mma_fence();
    const auto product = [&](float(&to)[P::kN / 2], int part_a, int part_b, int kk, int add) {
      const uint32_t a = a0 + at + (part_a * P::kBytesA + kk * kStepA) / 16;
      const uint32_t b = b0 + at + (part_b * P::kBytesB + kk * kStepB) / 16;
      mma<typename P::T, P::kN, !P::kKMajorA, !P::kKMajorB>(to, descriptor(a, 1024),
                                                            descriptor(b, 1024), add);
    };
#pragma unroll
    for (int kk = 0; kk < kTileK / 16; ++kk) {
      product(cross, 0, 1, kk, kk);
      product(cross, 1, 0, kk, 1);
      product(high, 0, 0, kk, kk);
    }
    mma_commit();
    mma_wait<0>();
    release<P>(empty, step);
#pragma unroll
    for (int j = 0; j < P::kN / 2; ++j) {
      // Final from here: no read of them may move up.
      asm volatile("" : "+f"(high[j]), "+f"(cross[j])::"memory");
      sum[j] += fmaf(cross[j], 1.0f / kLowScale, high[j]);
    }
  }
}

// The slopes of a tile that takes them as bits (wgmma_bits.cuh).
template <class P>
struct TileBits;
template <class P>
__device__ inline auto bits_of(const Problem& p, const Unit& x, int row) {
  if constexpr (requires { P::kTakesBits; }) {
    return TileBits<P>(p, x, row);
  } else {
    return 0;
  }
}

template <class P>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_wgmma_kernel(const __grid_constant__ Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t tiles = (shared_address(shared) + 1023) & ~1023u;
  const uint32_t full = tiles + P::kBarriersAt, empty = full + P::kStages * 8;
  const uint32_t rank = cluster_rank();
  // By way of lane 0 the compiler knows that a warp agrees on it and keeps addresses in uniform
  // registers.
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) open_pipeline<P>(p, full, empty, P::kPingPong ? 1 : 2);
  cluster_sync();
  await_previous_kernel();
  if (group == 0) {
    give_registers<P::kProducerRegisters>();
    if (threadIdx.x == 0) {
      produce<P>(p, tiles, full, empty, rank);
    }
  } else {
    take_registers<P::kConsumerRegisters>();
    const int consumer = group - 1, row = P::kPingPong ? 0 : consumer * P::kRows;
    constexpr int kTurn = 1;
    if (P::kPingPong && consumer == 1) named_arrive(kTurn, 256);  // consumer 0 begins
    uint32_t step = 0;
    int index = 0;
    for (int u = blockIdx.x / kCluster; u < p.units; u += gridDim.x / kCluster, ++index) {
      const Unit x = unit_of<P>(p, u, rank);
      const int blocks = x.last_k - x.first_k;
      if (!P::kPingPong || index % 2 == consumer) {
        float sum[P::kMmas][P::kN / 2];
        TileBias<P> bias;
        if constexpr (!requires { P::kScaledRows; }) bias = load_bias<P>(p, x);
        auto bits = bits_of<P>(p, x, row);
        if (P::kPingPong) named_sync(kTurn + consumer, 256);
        if constexpr (P::kParts == 1) {
          multiply<P>(sum, blocks, step, row, tiles, full, empty);
        } else {
          multiply_parts<P>(sum[0], blocks, step, row, tiles, full, empty);
          unscale<P>(p, sum[0], x, row);
        }
        if (P::kPingPong) named_arrive(kTurn + (consumer ^ 1), 256);
        if constexpr (requires { P::kExponentials; }) {
          exponentiate<P>(p, sum, bias, x, row);
        } else if constexpr (requires { P::kScaledRows; }) {
          scale_rows<P>(p, sum, x, row);
        } else if constexpr (requires { P::kTakesBits; }) {
          take_bits_and_sum<P>(
              p, sum, bits, x, row, consumer, index,
              reinterpret_cast<float*>(shared + (tiles - shared_address(shared)) + P::kSumsAt) +
                  consumer * P::kSets * P::kSums);
        } else {
          finish<P>(p, sum, bias, x, row);
        }
        if constexpr (requires { P::kKeepsSlopes; }) {
          store_values_and_slopes<P>(p, sum, x, row);
        } else if constexpr (requires { P::kKeepsBits; }) {
          store_relu<P>(p, sum, x, row);
        } else {
          if constexpr (requires { P::kActivation; }) activate<P>(p, sum, x, row);
          if constexpr (sizeof(typename P::Out) == 2) {
            write_halves<P>(p, sum, x, row);
          } else {
            write_floats<P>(p, sum, x, row);
          }
        }
      }
      step += blocks;
    }
  }
  cluster_sync();  // the other block may still deliver to this one or arrive at its barriers
#endif
}

}  // namespace saturate::kernels::wgmma
