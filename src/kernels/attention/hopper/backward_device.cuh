// SPDX-License-Identifier: Apache-2.0
// Parts of the Hopper backward kernel: its shape, its shared memory, the way of results to memory.
#pragma once
#include "kernels/attention/hopper/backward_problem.h"
#include "kernels/attention/mma/device.cuh"
#include "kernels/hopper/registers.cuh"
#include "kernels/hopper/stores.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace saturate::kernels::attention::hopper {

using namespace wgmma;  // the instructions

constexpr int kBackwardThreads = 384;  // a producer and two consumer warpgroups
constexpr int kConsumers = 256;

// Bytes from the start of the shared memory, which is aligned to 1024. A tile of 64 w columns lies
// as w panels of 64 columns, one after the other, rows of 128 bytes.
// kWindowed: with windows and bottom-right alignment; kScoreMod: with them, a cap or slopes (windowed.h).
// kDrops: with dropout.
template <class T_, int kD_, bool kWindowed_ = false, bool kScoreMod_ = false, bool kDrops_ = false>
struct Backward {
  using T = T_;
  static constexpr bool kWindowed = kWindowed_, kScoreMod = kScoreMod_, kDrops = kDrops_;
  static constexpr int kD = kD_, kPanels = kD / 64;
  static constexpr int kN = kBackwardKeys, kM = backward_queries(kD);
  // A block has what it was launched with, 3 x 168.
  static constexpr int kProducerRegisters = kD == 64 ? 40 : 24;
  static constexpr int kConsumerRegisters = kD == 64 ? 232 : 240;
  static constexpr int kStagesQ = 2, kStagesDO = 2;
  static constexpr bool kTurns = kD == 64;        // see begin_exponentials(); LADDER.md
  static constexpr bool kEarlyDelta = kD == 128;  // read before d_p is there; LADDER.md
  static constexpr uint32_t kKeyPanel = kN * 128, kQueryPanel = kM * 128;
  static constexpr uint32_t kKeyTile = kPanels * kKeyPanel, kQueryTile = kPanels * kQueryPanel;
  static constexpr uint32_t kScoreTile = kM * kN * 2;  // panels of 64 queries, rows are keys
  static constexpr uint32_t kSumBytes = kM * kD * 2;   // a consumer's half of d_q in fp32
  static constexpr uint32_t kK = 0, kV = kKeyTile, kQ = 2 * kKeyTile;
  static constexpr uint32_t kDO = kQ + kStagesQ * kQueryTile;
  static constexpr uint32_t kDS = kDO + kStagesDO * kQueryTile;
  static constexpr uint32_t kDQ = kDS + 2 * kScoreTile;
  static constexpr uint32_t kLse = kDQ + 4 * kSumBytes, kDelta = kLse + kStagesQ * kM * 4;
  static constexpr uint32_t kBarriers = kDelta + kStagesDO * kM * 4;
  // Barriers, 8 bytes each. Those of sums, work and gradients come in pairs.
  static constexpr uint32_t kFullQ = kBarriers, kEmptyQ = kFullQ + 8 * kStagesQ;
  static constexpr uint32_t kFullDO = kEmptyQ + 8 * kStagesQ, kEmptyDO = kFullDO + 8 * kStagesDO;
  static constexpr uint32_t kFullK = kEmptyDO + 8 * kStagesDO, kEmptyK = kFullK + 8;
  static constexpr uint32_t kFullV = kEmptyK + 8, kEmptyV = kFullV + 8;
  static constexpr uint32_t kSumReady = kEmptyV + 8, kSumDone = kSumReady + 32;
  static constexpr uint32_t kFullWork = kSumDone + 32, kEmptyWork = kFullWork + 16;
  static constexpr uint32_t kFullDS = kEmptyWork + 16, kWork = kFullDS + 16;
  static constexpr uint32_t kEmptyDS = kWork + 64;  // with dropout
  static constexpr uint32_t kEnd = kEmptyDS + (kDrops ? 16 : 0);
  static constexpr uint32_t kSharedBytes = kEnd;
  static_assert(kSharedBytes <= 232448);
};

__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Makes this thread's ordinary stores to shared memory visible to the tensor cores; a barrier
// follows.
__device__ __forceinline__ void publish_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
// The value, which the compiler cannot compute ahead of its use (descriptors kept through a loop
// would fill the registers).
__device__ __forceinline__ uint32_t here(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
// The sums of a finished product: no read of them may move up.
template <int kCount>
__device__ __forceinline__ void settle(float (&sum)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) asm volatile("" : "+f"(sum[j]));
}

// Rows begin to end of a tile of panels of kRows rows become zero. By kThreads threads, all of a
// consumer or of both; their barrier and the fence included.
template <int kRows, int kPanels, int kThreads = kConsumers>
__device__ __forceinline__ void clear_rows(uint32_t tile, int begin, int end, int thread,
                                           int barrier = 1) {
#pragma unroll 1
  for (int row = begin + thread % kThreads / 8; row < end; row += kThreads / 8) {
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                       tile + static_cast<uint32_t>(i * kRows * 128 + row * 128 + thread % 8 * 16)),
                   "r"(0)
                   : "memory");
  }
  publish_stores();
  named_sync(barrier, kThreads);
}

// 64 rows by kCols of a warpgroup's sums, times `scale`, to rows of 16-bit values of which `valid`
// exist; out is the first.
template <class T, int kCols>
__device__ __forceinline__ void write_rows_of(T* out, int64_t stride, int valid,
                                              const float (&sum)[kCols / 2], float scale) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = thread / 32 * 16 + lane / 4 + half * 8;
    T* line = out + row * stride + lane % 4 * 8;
#pragma unroll
    for (int g = 0; g < kCols / 32; ++g) {
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (g * 4 + i) * 4 + half * 2;
        v[i] = wgmma::pack<T>(sum[at] * scale, sum[at + 1] * scale);
      }
      transpose_quad(v);
      if (row < valid)
        *reinterpret_cast<uint4*>(line + g * 32) = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}

// The two values of a register of packed ones.
template <class T>
__device__ __forceinline__ float2 unpack(uint32_t x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF0000u)};
  else
    return __half22float2(reinterpret_cast<const __half2&>(x));
}
__device__ __forceinline__ float2 load_pair(uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}

// --- a consumer's sums of d_q in shared memory: 16 bytes a thread, in the order of the registers

__device__ __forceinline__ void put_sums(uint32_t to, const float (&sum)[32]) {
#pragma unroll
  for (int j = 0; j < 8; ++j)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + j * 2048), "f"(sum[4 * j]),
                 "f"(sum[4 * j + 1]), "f"(sum[4 * j + 2]), "f"(sum[4 * j + 3])
                 : "memory");
}
// total = sum, plus what lies in shared memory if `more`.
__device__ __forceinline__ void add_sums(float (&total)[16], const float* sum, uint32_t from,
                                         bool more) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (more)
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                   : "r"(from + j * 2048)
                   : "memory");
    total[4 * j] = sum[4 * j] + x.x, total[4 * j + 1] = sum[4 * j + 1] + x.y;
    total[4 * j + 2] = sum[4 * j + 2] + x.z, total[4 * j + 3] = sum[4 * j + 3] + x.w;
  }
}

// --- TMA, linear pieces between shared and global memory

__device__ __forceinline__ void load_piece(uint32_t to, const void* from, uint32_t bytes,
                                           uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void store_piece(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void add_piece(void* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
// Until what was committed has arrived.
__device__ __forceinline__ void await_pieces() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace saturate::kernels::attention::hopper
