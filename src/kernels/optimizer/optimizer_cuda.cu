// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/optimizer/optimizer_impl.h"
#include "kernels/optimizer/step_rules.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;

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
// anyway.
__global__ void gradient_norm_part_kernel(const float* grad, int64_t count, int64_t length,
                                          double* partial) {
  constexpr int kWide = 4, kInFlight = 4;
  __shared__ double shared[kThreads / kWarp];
  const int64_t first = blockIdx.x * length;
  const int64_t end = first + length < count ? first + length : count;
  double sum = 0.0;
#pragma unroll kInFlight
  for (int64_t i = first + threadIdx.x * kWide; i < end; i += kThreads * kWide) {
    float g[kWide];
    load(g, grad + i);
#pragma unroll
    for (int j = 0; j < kWide; ++j) sum += static_cast<double>(g[j]) * static_cast<double>(g[j]);
  }
  sum = block_sum_of_doubles(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void gradient_norm_join_kernel(const double* partial, int parts, StepState* state) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0.0;
  for (int i = threadIdx.x; i < parts; i += kThreads) sum += partial[i];
  sum = block_sum_of_doubles(sum, shared);
  if (threadIdx.x == 0) state->grad_square_sum = sum;
}

// Blocks stay and walk the arrays, so that the scalars (powers and a cosine in double) are computed
// once per block. A warp takes one group of `rules` at a time, as two halves in which neighbouring
// lanes touch neighbouring 16 bytes.
template <class C>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamWArgs x) {
  constexpr int kWide = 4, kHalves = 2;
  static_assert(kWarp * kWide * kHalves == kParameterAlign);
  __shared__ AdamWStep shared;
  if (threadIdx.x == 0) shared = adamw_step(x);
  __syncthreads();  // the step's factors are there
  const AdamWStep step = shared;
  if (!step.good) return;
  constexpr int kWarps = kThreads / kWarp;
  const int64_t groups = x.count / kParameterAlign,
                stride = static_cast<int64_t>(gridDim.x) * kWarps;
  int64_t group = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  for (; group < groups; group += stride) {
    const GroupRule rule = x.rules[group];
    if (rule == GroupRule::frozen) continue;
    const int64_t first = group * kParameterAlign + threadIdx.x % kWarp * kWide;
    float w[kHalves][kWide], m[kHalves][kWide], v[kHalves][kWide], g[kHalves][kWide],
        ema[kHalves][kWide] = {};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int64_t i = first + h * kWarp * kWide;
      load(g[h], x.grad + i);
      load(w[h], static_cast<const float*>(x.master) + i);
      load(m[h], static_cast<const float*>(x.m) + i);
      load(v[h], static_cast<const float*>(x.v) + i);
      if (x.ema != nullptr) load(ema[h], static_cast<const float*>(x.ema) + i);
    }
    const float decay = rule == GroupRule::decayed ? step.decay : 0.0f;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int64_t i = first + h * kWarp * kWide;
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        adamw_element(x, step, decay, g[h][j], w[h][j], m[h][j], v[h][j]);
        ema[h][j] = step.ema * ema[h][j] + (1.0f - step.ema) * w[h][j];
      }
      store(x.master + i, w[h]);
      store(x.m + i, m[h]);
      store(x.v + i, v[h]);
      if (x.compute != nullptr) store(static_cast<C*>(x.compute) + i, w[h]);
      if (x.ema != nullptr) store(x.ema + i, ema[h]);
    }
  }
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

void gradient_norm_cuda(const Context& ctx, const GradientNormArgs& x) {
  const int64_t parts = norm_parts(x.count);
  // Whole groups of 256, so that every part starts on 16 bytes.
  const int64_t length =
      ((x.count + parts - 1) / parts + kParameterAlign - 1) / kParameterAlign * kParameterAlign;
  double* partial = static_cast<double*>(x.partial);
  const cudaStream_t stream = cuda::stream_of(ctx);
  gradient_norm_part_kernel<<<static_cast<unsigned>(parts), kThreads, 0, stream>>>(x.grad, x.count,
                                                                                   length, partial);
  SAT_CUDA_LAUNCHED("gradient_norm_part_kernel");
  gradient_norm_join_kernel<<<1, kThreads, 0, stream>>>(partial, static_cast<int>(parts), x.state);
  SAT_CUDA_LAUNCHED("gradient_norm_join_kernel");
}

void adamw_cuda(const Context& ctx, const AdamWArgs& x) {
  int multiprocessors = 0;
  SAT_CUDA(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ctx.device.index));
  constexpr int64_t kPerBlock = kThreads * 8;
  constexpr int64_t kResident = 8;  // blocks a multiprocessor can hold (2048 threads)
  const int64_t needed = (x.count + kPerBlock - 1) / kPerBlock;
  const int64_t blocks =
      needed < kResident * multiprocessors ? needed : kResident * multiprocessors;
  auto* const kernel =
      x.compute_type == DType::f16 ? adamw_kernel<__half> : adamw_kernel<__nv_bfloat16>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, cuda::stream_of(ctx)>>>(x);
  SAT_CUDA_LAUNCHED("adamw_kernel");
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
