// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/optimizer/optimizer_impl.h"
#include "kernels/optimizer/step_rules.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;

constexpr int kJoinThreads = 1024;

// Ranges as an argument of a kernel: they need no memory on the device that a captured graph would
// have to keep. Longer lists take several launches.
struct RangeList {
  static constexpr int kMost = 64;
  OwnedRange at[kMost];
  int count = 0;
};

template <class Launch>
void for_lists(std::span<const OwnedRange> ranges, const Launch& launch) {
  for (size_t first = 0; first < ranges.size(); first += RangeList::kMost) {
    RangeList list;
    int64_t elements = 0;
    for (size_t i = first; i < ranges.size() && list.count < RangeList::kMost; ++i) {
      list.at[list.count++] = ranges[i];
      elements += ranges[i].end - ranges[i].begin;
    }
    if (elements > 0) launch(list, elements);
  }
}

// Thread 0 gets the sum; `shared` holds one double a warp.
__device__ __forceinline__ double block_sum_of_doubles(double v, double* shared) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    v += __shfl_xor_sync(0xFFFFFFFFu, v, offset);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = v;
  __syncthreads();  // every warp's sum is there
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) sum += shared[w];
  }
  return sum;
}

// Doubles throughout: a square may neither overflow nor vanish, and memory is slower than this
// anyway. One CUDA block for each block of the list's ranges.
__global__ void gradient_norm_blocks_kernel(const float* grad, RangeList list, double* partial) {
  constexpr int kWide = 4, kLoads = kNormBlock / (kThreads * kWide);
  static_assert(kLoads * kThreads * kWide == kNormBlock);
  __shared__ double shared[kThreads / kWarp];
  int64_t block = blockIdx.x;
  int r = 0;
  while (block >= norm_blocks(list.at[r].end - list.at[r].begin))
    block -= norm_blocks(list.at[r].end - list.at[r++].begin);
  const int64_t first = list.at[r].begin + block * kNormBlock, end = list.at[r].end;
  float g[kLoads][kWide] = {};
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int64_t i = first + (k * kThreads + threadIdx.x) * kWide;
    if (i < end) load(g[k], grad + i);
  }
  double sum = 0.0;
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
#pragma unroll
    for (int j = 0; j < kWide; ++j)
      sum += static_cast<double>(g[k][j]) * static_cast<double>(g[k][j]);
  }
  sum = block_sum_of_doubles(sum, shared);
  if (threadIdx.x == 0) partial[first / kNormBlock] = sum;
}

__global__ void gradient_norm_join_kernel(const double* partial, int64_t blocks, StepState* state) {
  __shared__ double shared[kJoinThreads / kWarp];
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < blocks; i += kJoinThreads) sum += partial[i];
  sum = block_sum_of_doubles(sum, shared);
  if (threadIdx.x == 0) state->grad_square_sum = sum;
}

// Four neighbouring elements from place `local` on.
template <MomentType kMoments>
__device__ __forceinline__ void load_moments(const AdamWArgs& x, const MomentTables& tables,
                                             int64_t local, float (&m)[4], float (&v)[4]) {
  if constexpr (kMoments == MomentType::wide) {
    load(m, static_cast<const float*>(x.m) + local);
    load(v, static_cast<const float*>(x.v) + local);
  } else if constexpr (kMoments == MomentType::bf16) {
    load(m, static_cast<const __nv_bfloat16*>(x.m) + local);
    load(v, static_cast<const __nv_bfloat16*>(x.v) + local);
  } else {
    const float m_scale = x.m_scales[local / kParameterAlign],
                v_scale = x.v_scales[local / kParameterAlign];
    const uchar4 m_codes =
        *reinterpret_cast<const uchar4*>(static_cast<const uint8_t*>(x.m) + local);
    const uchar4 v_codes =
        *reinterpret_cast<const uchar4*>(static_cast<const uint8_t*>(x.v) + local);
    const uint8_t of_m[4] = {m_codes.x, m_codes.y, m_codes.z, m_codes.w};
    const uint8_t of_v[4] = {v_codes.x, v_codes.y, v_codes.z, v_codes.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      m[j] = m_scale * decode_signed(tables.with_sign, of_m[j]);
      v[j] = v_scale * decode_plain(tables.plain, of_v[j]);
    }
  }
}

__device__ __forceinline__ float extremum_of_warp(const float (&x)[2][4]) {
  uint32_t key = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int j = 0; j < 4; ++j) key = max(key, extremum_key(x[h][j]));
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    key = max(key, __shfl_xor_sync(0xFFFFFFFFu, key, offset));
  return extremum_of(key);
}

// A whole piece by a warp, each lane with four elements of each half.
template <MomentType kMoments>
__device__ __forceinline__ void store_moments(const AdamWArgs& x, const MomentTables& tables,
                                              int64_t piece, int64_t local, const float (&m)[2][4],
                                              const float (&v)[2][4]) {
  constexpr int kHalf = kParameterAlign / 2;
  if constexpr (kMoments == MomentType::wide) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      store(static_cast<float*>(x.m) + local + h * kHalf, m[h]);
      store(static_cast<float*>(x.v) + local + h * kHalf, v[h]);
    }
    return;
  }
  const PieceName name = x.pieces[piece];
  const int lane = threadIdx.x % kWarp;
  float m_scale = 1.0f, v_scale = 1.0f;
  if constexpr (kMoments == MomentType::blocks) {
    m_scale = extremum_of_warp(m);
    v_scale = extremum_of_warp(v);
    if (lane == 0) {
      x.m_scales[local / kParameterAlign] = m_scale;
      x.v_scales[local / kParameterAlign] = v_scale;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Random4 r = moment_random(x.state->rng[0], x.state->step, name, h * (kHalf / 4) + lane);
    if constexpr (kMoments == MomentType::bf16) {
      ushort4 of_m, of_v;
      of_m.x = encode_bf16(m[h][0], r.x[0] & 0xFFFFu), of_v.x = encode_bf16(v[h][0], r.x[0] >> 16);
      of_m.y = encode_bf16(m[h][1], r.x[1] & 0xFFFFu), of_v.y = encode_bf16(v[h][1], r.x[1] >> 16);
      of_m.z = encode_bf16(m[h][2], r.x[2] & 0xFFFFu), of_v.z = encode_bf16(v[h][2], r.x[2] >> 16);
      of_m.w = encode_bf16(m[h][3], r.x[3] & 0xFFFFu), of_v.w = encode_bf16(v[h][3], r.x[3] >> 16);
      *reinterpret_cast<ushort4*>(static_cast<uint16_t*>(x.m) + local + h * kHalf) = of_m;
      *reinterpret_cast<ushort4*>(static_cast<uint16_t*>(x.v) + local + h * kHalf) = of_v;
    } else {
      uint32_t of_m = 0, of_v = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t c = encode_signed(tables.with_sign, m[h][j] / m_scale, r.x[j] & 0xFFFFu);
        const uint32_t d = encode_plain(tables.plain, v[h][j] / v_scale, r.x[j] >> 16);
        of_m |= c << (8 * j);
        of_v |= d << (8 * j);
      }
      *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(x.m) + local + h * kHalf) = of_m;
      *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(x.v) + local + h * kHalf) = of_v;
    }
  }
}

// Blocks stay and walk the ranges, so that the scalars (powers and a cosine in double) are computed
// once per block. A warp takes one piece with one rule at a time, as two halves in which
// neighbouring lanes touch neighbouring 16 bytes.
template <class C, MomentType kMoments>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamWArgs x, RangeList list) {
  constexpr int kWide = 4, kHalves = 2;
  static_assert(kWarp * kWide * kHalves == kParameterAlign);
  __shared__ AdamWStep<float> shared;
  __shared__ MomentTables tables;
  if constexpr (kMoments == MomentType::blocks) {
    for (int i = threadIdx.x; i < SignedMap::kValues; i += kThreads)
      tables.with_sign[i] = SignedMap::value(i);
    for (int i = threadIdx.x; i < PlainMap::kValues; i += kThreads)
      tables.plain[i] = PlainMap::value(i);
  }
  if (threadIdx.x == 0) shared = adamw_step<float>(x);
  __syncthreads();  // the step's factors are there
  const AdamWStep<float> step = shared;
  if (!step.good) return;
  auto* const master = static_cast<float*>(x.master);
  auto* const average = static_cast<float*>(x.ema);
  const auto* const grad = static_cast<const float*>(x.grad);
  constexpr int kWarps = kThreads / kWarp;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  int64_t piece = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  for (int r = 0; r < list.count; ++r) {
    const OwnedRange range = list.at[r];
    const int64_t pieces = (range.end - range.begin) / kParameterAlign;
    for (; piece < pieces; piece += stride) {
      const int64_t from = range.begin + piece * kParameterAlign + threadIdx.x % kWarp * kWide;
      const int64_t local = from - range.begin + range.local;
      float w[kHalves][kWide], m[kHalves][kWide], v[kHalves][kWide], g[kHalves][kWide],
          ema[kHalves][kWide] = {};
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int64_t i = local + h * kWarp * kWide;
        load(g[h], grad + from + h * kWarp * kWide);
        load(w[h], static_cast<const float*>(master) + i);
        load_moments<kMoments>(x, tables, i, m[h], v[h]);
        if (average != nullptr) load(ema[h], static_cast<const float*>(average) + i);
      }
      const float decay = x.rules[from / kParameterAlign] == DecayRule::decayed ? step.decay : 0.0f;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int64_t i = local + h * kWarp * kWide;
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          adamw_element<float>(x, step, decay, g[h][j], w[h][j], m[h][j], v[h][j]);
          ema[h][j] = step.ema * ema[h][j] + (1.0f - step.ema) * w[h][j];
        }
        store(master + i, w[h]);
        if (x.compute != nullptr)
          store(static_cast<C*>(x.compute) + from + h * kWarp * kWide, w[h]);
        if (average != nullptr) store(average + i, ema[h]);
      }
      store_moments<kMoments>(x, tables, from / kParameterAlign, local, m, v);
    }
    piece -= pieces;  // its number in the next range
  }
}

template <class C>
auto adamw_kernel_for(MomentType moments) {
  return moments == MomentType::wide   ? adamw_kernel<C, MomentType::wide>
         : moments == MomentType::bf16 ? adamw_kernel<C, MomentType::bf16>
                                       : adamw_kernel<C, MomentType::blocks>;
}

__global__ void finish_step_kernel(FinishStepArgs x) {
  const StepRecord record = finish(*x.state, x);
  // The host polls this memory: volatile so that each field is written once and as given.
  volatile StepRecord& slot = x.ring[(record.step - 1) % x.ring_slots];
  put_record(slot, record);
  __threadfence_system();  // the host sees the fields before `sequence`
  slot.sequence = static_cast<uint64_t>(record.step);
}

__global__ void batch_intake_kernel(BatchIntakeArgs x) {
  const uint64_t taken = micro_batches_taken(x.state->rng[1], static_cast<uint64_t>(x.rank),
                                             static_cast<uint64_t>(x.ranks));
  const int32_t* src = x.slots[taken % static_cast<uint64_t>(x.slot_count)];
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool wide =
      (reinterpret_cast<uintptr_t>(src) | reinterpret_cast<uintptr_t>(x.dst)) % sizeof(int4) == 0;
  const int64_t quads = wide ? x.words / 4 : 0;
  for (int64_t i = first; i < quads; i += stride) {
    reinterpret_cast<int4*>(x.dst)[i] = reinterpret_cast<const int4*>(src)[i];
  }
  for (int64_t i = quads * 4 + first; i < x.words; i += stride) x.dst[i] = src[i];
}

// A launch of its own: every block of the copy must have read the number first.
__global__ void next_micro_batch_kernel(StepState* state, uint64_t ranks) {
  state->rng[1] += ranks;
}

}  // namespace

void gradient_norm_blocks_cuda(const Context& ctx, const GradientNormArgs& x) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  const bool whole = x.ranges.size() == 1 && x.ranges[0].begin == 0 && x.ranges[0].end == x.count;
  if (!whole) {
    const auto bytes = static_cast<size_t>(norm_blocks(x.count)) * sizeof(double);
    SAT_CUDA(cudaMemsetAsync(x.partial, 0, bytes, stream));
  }
  for_lists(x.ranges, [&](const RangeList& list, int64_t) {
    int64_t blocks = 0;
    for (int r = 0; r < list.count; ++r) blocks += norm_blocks(list.at[r].end - list.at[r].begin);
    gradient_norm_blocks_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        static_cast<const float*>(x.grad), list, x.partial);
    SAT_CUDA_LAUNCHED("gradient_norm_blocks_kernel");
  });
}

void gradient_norm_join_cuda(const Context& ctx, const GradientNormArgs& x) {
  gradient_norm_join_kernel<<<1, kJoinThreads, 0, cuda::stream_of(ctx)>>>(
      x.partial, norm_blocks(x.count), x.state);
  SAT_CUDA_LAUNCHED("gradient_norm_join_kernel");
}

void adamw_cuda(const Context& ctx, const AdamWArgs& x) {
  int multiprocessors = 0;
  SAT_CUDA(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ctx.device.index));
  constexpr int64_t kPerBlock = kThreads * 8;
  constexpr int64_t kResident = 8;  // blocks a multiprocessor can hold (2048 threads)
  auto* const kernel = x.compute_type == DType::f16 ? adamw_kernel_for<__half>(x.moments)
                                                    : adamw_kernel_for<__nv_bfloat16>(x.moments);
  for_lists(x.ranges, [&](const RangeList& list, int64_t elements) {
    const int64_t needed = (elements + kPerBlock - 1) / kPerBlock;
    const int64_t blocks =
        needed < kResident * multiprocessors ? needed : kResident * multiprocessors;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, cuda::stream_of(ctx)>>>(x, list);
    SAT_CUDA_LAUNCHED("adamw_kernel");
  });
}

void finish_step_cuda(const Context& ctx, const FinishStepArgs& x) {
  finish_step_kernel<<<1, 1, 0, cuda::stream_of(ctx)>>>(x);
  SAT_CUDA_LAUNCHED("finish_step_kernel");
}

void batch_intake_cuda(const Context& ctx, const BatchIntakeArgs& x) {
  const int64_t needed = (x.words + kThreads * 4 - 1) / (kThreads * 4);
  const auto blocks = static_cast<unsigned>(needed < 1 ? 1 : (needed > 256 ? 256 : needed));
  batch_intake_kernel<<<blocks, kThreads, 0, cuda::stream_of(ctx)>>>(x);
  SAT_CUDA_LAUNCHED("batch_intake_kernel");
  next_micro_batch_kernel<<<1, 1, 0, cuda::stream_of(ctx)>>>(x.state,
                                                             static_cast<uint64_t>(x.ranks));
  SAT_CUDA_LAUNCHED("next_micro_batch_kernel");
}

}  // namespace saturate::kernels
