// SPDX-License-Identifier: Apache-2.0
// Grouped products on Hopper: the pipeline of wgmma_kernel.cuh, but which tile a unit is follows
// from the offsets in device memory. Every block counts the units of all groups into shared memory
// first; a unit's group is then a binary search.
//
// forward, input gradient   cooperative tiles of 128 x 256. A pair of blocks takes 256 rows of a
//                           group and shares the columns of B. The last rows of a group, if at
//                           most 128, go side by side instead: the pair takes two tiles of the same
//                           rows and shares A. So a group wastes less than 128 rows of work.
// weight gradient           ping-pong tiles of 128 x 192: with groups of a few hundred rows it is
//                           bound by writing fp32, which one consumer does while the other
//                           multiplies.
#pragma once
#include "kernels/gemm/grouped/grouped_wgmma.h"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {

// The tiles of shape P with the groups' tables behind the barriers.
template <class P>
struct Grouped : P {
  static constexpr bool kWeights = sizeof(typename P::Out) == 4;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;  // it finds its groups
  // Weight gradients: what each of the eight warps has under way to memory.
  static constexpr int kSlabs = 3;
  static constexpr uint32_t kSlabBytes = kSlabRows * 128;
  static constexpr uint32_t kSlabsAt = (P::kBarriersAt + P::kStages * 16 + 1023) / 1024 * 1024;
  static constexpr uint32_t kFirstAt = kSlabsAt + (kWeights ? 8 * kSlabs * kSlabBytes : 0);
  static constexpr uint32_t kBeforeAt = kFirstAt + (kMostGroups + 1) * 4;
  static constexpr uint32_t kGroupedBytes = kBeforeAt + (kMostGroups + 1) * 4 + 1024;
  static_assert(kGroupedBytes <= 232448);
};

struct Groups {
  int* first;   // (groups + 1) rows, as the offsets but within [0, rows]
  int* before;  // (groups + 1) units of the groups before
  __device__ int size(int g) const { return max(0, first[g + 1] - first[g]); }
};

struct GroupedUnit {
  int group, m, n;         // of this block's tile
  int first_row, end_row;  // of the group
  int blocks;              // of k
  bool beside;             // the pair shares its rows, not its columns
};

template <class P>
__device__ inline int units_of(const GroupedProblem& p, int rows) {
  const int tiles_n = (p.n + P::kN - 1) / P::kN;
  if (P::kWeights)  // an empty group adds nothing
    return rows == 0 && p.beta == 1.0f ? 0 : (p.m + 2 * P::kM - 1) / (2 * P::kM) * tiles_n;
  const int rest = rows % (2 * P::kM), pairs = rows / (2 * P::kM) + (rest > P::kM);
  return pairs * tiles_n + (rest > 0 && rest <= P::kM ? (tiles_n + 1) / 2 : 0);
}

// By all threads of the block; ends with them in step.
template <class P>
__device__ inline void count_units(const GroupedProblem& p, const Groups& groups) {
  __shared__ int warp_units[kThreads / 32];
  constexpr int kEach = (kMostGroups + kThreads - 1) / kThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (int g = thread; g <= p.groups; g += kThreads)
    groups.first[g] = min(max(p.offsets[g], 0), p.rows);
  __syncthreads();
  int units[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int g = thread * kEach + i;
    units[i] = g < p.groups ? units_of<P>(p, groups.size(g)) : 0;
    sum += units[i];
  }
  int upto = sum;  // over the warp's threads up to this one
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int left = __shfl_up_sync(~0u, upto, distance);
    if (lane >= distance) upto += left;
  }
  if (lane == 31) warp_units[thread / 32] = upto;
  __syncthreads();
  int before = upto - sum;
  for (int w = 0; w < thread / 32; ++w) before += warp_units[w];
  if (thread == 0) groups.before[0] = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int g = thread * kEach + i;
    before += units[i];
    if (g < p.groups) groups.before[g + 1] = before;
  }
  __syncthreads();
}

template <class P>
__device__ inline GroupedUnit grouped_unit(const GroupedProblem& p, const Groups& groups, int u,
                                           uint32_t rank) {
  int low = 0, high = p.groups - 1;  // the last group that begins at or before u
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (groups.before[middle] <= u) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int rows = groups.size(low), tiles_n = (p.n + P::kN - 1) / P::kN,
            r = static_cast<int>(rank);
  GroupedUnit x;
  x.group = low;
  x.first_row = groups.first[low];
  x.end_row = x.first_row + rows;
  x.blocks = P::kWeights ? (rows + kTileK - 1) / kTileK : p.k_blocks;
  int t = u - groups.before[low];
  const int pairs =
      P::kWeights ? (p.m + 2 * P::kM - 1) / (2 * P::kM) : (rows + P::kM - 1) / (2 * P::kM);
  x.beside = t >= pairs * tiles_n;
  if (x.beside) {
    x.m = x.first_row + pairs * 2 * P::kM;
    x.n = ((t - pairs * tiles_n) * 2 + r) * P::kN;
  } else {
    const int per_band = p.band * tiles_n, band = t / per_band;
    const int in_this = min(p.band, pairs - band * p.band);
    t %= per_band;
    x.m = ((band * p.band + t % in_this) * 2 + r) * P::kM + (P::kWeights ? 0 : x.first_row);
    x.n = t / in_this * P::kN;
  }
  return x;
}

// Box of matrix z of a stack.
template <bool kMulticast>
__device__ inline void load_box_of(uint32_t to, const CUtensorMap& map, uint32_t bar, int x, int y,
                                   int z) {
  if constexpr (kMulticast) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(&map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(static_cast<uint16_t>(3))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(&map), "r"(bar), "r"(x), "r"(y), "r"(z)
        : "memory");
  }
}

// One block of k of a unit: A by boxes of 64 rows, half of B for both blocks (or all of B for this
// block and half of A for both).
template <class P>
__device__ inline void load_stage(const GroupedProblem& p, const GroupedUnit& x, int k, uint32_t a,
                                  uint32_t bar, int rank) {
  const uint32_t b = a + P::kBytesA;
  if constexpr (P::kWeights) {
    const int row = x.first_row + k, half = rank * (kTileK / 2);
#pragma unroll
    for (int i = 0; i < P::kM / 64; ++i) load_box<false>(a + i * 8192, p.a, bar, x.m + i * 64, row);
#pragma unroll
    for (int i = 0; i < P::kN / 64; ++i)
      load_box<true>(b + i * 8192 + half * 128, p.b, bar, x.n + i * 64, row + half);
  } else {
    static_assert(P::kM == 128 || P::kWeights);
    const auto load_b = [&]<bool kBoth>(int part) {
      if constexpr (P::kKMajorB) {
        const int half = part * (P::kN / 2);
        load_box_of<kBoth>(b + half * 128, p.b, bar, k, x.n + half, x.group);
      } else {
        const int half = part * (kTileK / 2);
#pragma unroll
        for (int i = 0; i < P::kN / 64; ++i)
          load_box_of<kBoth>(b + i * 8192 + half * 128, p.b, bar, x.n + i * 64, k + half, x.group);
      }
    };
    if (x.beside) {
      load_box<true>(a + rank * 8192, p.a, bar, k, x.m + rank * 64);
      load_b.template operator()<false>(0);
      load_b.template operator()<false>(1);
    } else {
      load_box<false>(a, p.a, bar, k, x.m);
      load_box<false>(a + 8192, p.a, bar, k, x.m + 64);
      load_b.template operator()<true>(rank);
    }
  }
}

template <class P>
__device__ inline void produce_groups(const GroupedProblem& p, const Groups& groups, uint32_t tiles,
                                      uint32_t full, uint32_t empty, uint32_t rank) {
  const int units = groups.before[p.groups];
  uint32_t step = 0;
  for (int u = static_cast<int>(blockIdx.x / kCluster); u < units; u += gridDim.x / kCluster) {
    const GroupedUnit x = grouped_unit<P>(p, groups, u, rank);
    for (int kb = 0; kb < x.blocks; ++kb, ++step) {
      const uint32_t stage = step % P::kStages, bar = full + stage * 8;
      barrier_wait(empty + stage * 8, (step / P::kStages & 1) ^ 1);
      barrier_expect(bar, P::kStageBytes);
      load_stage<P>(p, x, kb * kTileK, tiles + stage * P::kStageBytes, bar, static_cast<int>(rank));
    }
  }
}

// Sets rows `from` and up of a stage of a weight gradient to zero: they belong to the next group.
// By one consumer, which is alone in reading the stage.
template <class P>
__device__ inline void clear_rows(uint32_t stage, int from, int consumer) {
  const int thread = static_cast<int>(threadIdx.x % 128);
#pragma unroll
  for (uint32_t box = 0; box < P::kStageBytes; box += 8192) {
    for (int chunk = from * 8 + thread; chunk < 512; chunk += 128)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + box + chunk * 16),
                   "r"(0)
                   : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before wgmma reads it
  named_sync(3 + consumer, 128);
}

// TMA stores a box, or adds it to what is there (subnormal values count as zero).
__device__ inline void store_box(const CUtensorMap& map, uint32_t from, int x, int y, int z,
                                 bool add) {
  if (add) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
        "[%0, {%2, %3, %4}], [%1];" ::"l"(&map),
        "r"(from), "r"(x), "r"(y), "r"(z)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::
            "l"(&map),
        "r"(from), "r"(x), "r"(y), "r"(z)
        : "memory");
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// A consumer's tile of a weight gradient through shared memory, every warp for itself: whole lines
// of 128 bytes, which registers cannot store (they make 32-byte pieces at a quarter of the rate),
// and sums onto dW without reading it. `slabs`: the warp's. Rows and columns beyond dW are dropped.
template <class P>
__device__ inline void store_weights(const GroupedProblem& p,
                                     const float (&sum)[P::kMmas][P::kN / 2], const GroupedUnit& x,
                                     uint32_t slabs) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  // Of this thread's first value: row lane / 4, and 16-byte piece lane % 4 / 2 turned by the
  // swizzle. Slabs are aligned to 1024 bytes, so the next 32 bytes are one exclusive or away.
  const int place = lane / 4 * 128 + ((lane % 4 / 2) ^ (lane / 4)) * 16 + lane % 2 * 8;
  const int row = x.m + thread / 32 * kSlabRows;
#pragma unroll
  for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
    for (int c = 0; c < P::kN / 32; ++c) {
      const uint32_t slab = slabs + (q * (P::kN / 32) + c) % P::kSlabs * P::kSlabBytes;
      static_assert(P::kMmas * (P::kN / 32) % P::kSlabs == 0);  // the next tile begins with slab 0
      if (lane == 0)  // this slab's last store has read it
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(P::kSlabs - 1) : "memory");
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* v = &sum[q][(c * 4 + j) * 4 + half * 2];
          asm volatile(
              "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(((slab + place) ^ j * 32) + half * 1024),
              "f"(v[0]), "f"(v[1])
              : "memory");
        }
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before the engine reads
      __syncwarp();
      if (lane == 0) {
        store_box(p.d, slab, x.n + c * 32, row + q * 64, x.group, p.beta == 1.0f);
      }
    }
  }
}

// The part of a Problem that the results of one group need.
struct GroupedResult {
  void* out;
  const void* c;
  const void* bias;
  float* partial;
  int64_t ldc, ldd;
  float alpha, beta;
  int m, n;
};

template <class P>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_wgmma_kernel(const __grid_constant__ GroupedProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t tiles = (shared_address(shared) + 1023) & ~1023u;
  const uint32_t full = tiles + P::kBarriersAt, empty = full + P::kStages * 8;
  char* const aligned = shared + (tiles - shared_address(shared));
  const Groups groups{reinterpret_cast<int*>(aligned + P::kFirstAt),
                      reinterpret_cast<int*>(aligned + P::kBeforeAt)};
  const uint32_t rank = cluster_rank();
  // By way of lane 0 the compiler knows that a warp agrees on it.
  const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) open_pipeline<P>(p, full, empty, P::kPingPong ? 1 : 2);
  await_previous_kernel();
  count_units<P>(p, groups);
  cluster_sync();
  if (role == 0) {
    give_registers<P::kProducerRegisters>();
    if (threadIdx.x == 0) produce_groups<P>(p, groups, tiles, full, empty, rank);
  } else {
    take_registers<P::kConsumerRegisters>();
    const int consumer = role - 1, row = P::kPingPong ? 0 : consumer * P::kRows;
    const int units = groups.before[p.groups];
    constexpr int kTurn = 1;
    if (P::kPingPong && consumer == 1) named_arrive(kTurn, 256);  // consumer 0 begins
    const uint32_t slabs =
        tiles + P::kSlabsAt + (threadIdx.x / 32 - 4) * (P::kSlabs * P::kSlabBytes);
    uint32_t step = 0;
    int index = 0;
    for (int u = static_cast<int>(blockIdx.x / kCluster); u < units;
         u += gridDim.x / kCluster, ++index) {
      const GroupedUnit x = grouped_unit<P>(p, groups, u, rank);
      if (!P::kPingPong || index % 2 == consumer) {
        float sum[P::kMmas][P::kN / 2];
        if (P::kPingPong) named_sync(kTurn + consumer, 256);
        if constexpr (P::kWeights) {
          const int rows = x.end_row - x.first_row;
          multiply<P>(sum, x.blocks, step, row, tiles, full, empty, [&](int i, uint32_t stage) {
            if (rows - i * kTileK < kTileK) clear_rows<P>(stage, rows - i * kTileK, consumer);
          });
        } else {
          multiply<P>(sum, x.blocks, step, row, tiles, full, empty);
        }
        if (P::kPingPong) named_arrive(kTurn + (consumer ^ 1), 256);
        if constexpr (P::kWeights) {
          if (x.blocks == 0) {
#pragma unroll
            for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
              for (int j = 0; j < P::kN / 2; ++j) sum[q][j] = 0.0f;
            }
          }
          store_weights<P>(p, sum, x, slabs);
        } else {
          const GroupedResult result{p.out, nullptr, nullptr, nullptr,   0,
                                     p.ldd, 1.0f,    0.0f,    x.end_row, p.n};
          write_halves<P>(result, sum, Unit{x.m, x.n, 0, 0, 0}, row);
        }
      }
      step += x.blocks;
    }
    if (P::kWeights && threadIdx.x % 32 == 0)
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  cluster_sync();  // the other block may still deliver to this one or arrive at its barriers
#endif
}

template <class T, GroupedForm kForm>
cudaError_t launch_grouped(const GroupedProblem& p, int blocks, cudaStream_t stream) {
  using Sums =
      Tile<T, T, kGroupedTileM, kGroupedTileN, 4, false, true, kForm == GroupedForm::forward>;
  using Weights = Tile<T, float, kGroupedTileM, kGroupedWeightTileN, 4, true, false, false>;
  using P = Grouped<std::conditional_t<kForm == GroupedForm::weight_gradient, Weights, Sums>>;
  return launch_pairs<grouped_wgmma_kernel<P>, P::kGroupedBytes>(p, blocks, stream);
}

}  // namespace saturate::kernels::wgmma
