// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/optimizer/muon_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;

// Elements of one block of kNormBlock of one matrix, which a CUDA block has.
struct Piece {
  int64_t begin, end;
};
__device__ __forceinline__ Piece piece_of(const MuonPartArgs& x) {
  const int64_t each = norm_blocks(x.matrix()), block = blockIdx.x;
  const int64_t start = block / each * x.matrix(), into = block % each * kNormBlock;
  const int64_t end = into + kNormBlock < x.matrix() ? into + kNormBlock : x.matrix();
  return {start + into, start + end};
}

__device__ __forceinline__ double sum_of_block(double v, double* shared) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    v += __shfl_xor_sync(0xFFFFFFFFu, v, offset);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = v;
  __syncthreads();  // every warp's sum is there
  double sum = 0.0;
  for (int w = 0; w < kThreads / kWarp; ++w) sum += shared[w];
  return sum;
}

template <class X>
__global__ void __launch_bounds__(kThreads) muon_momentum_kernel(MuonPartArgs p) {
  __shared__ AdamWStep<float> shared;
  __shared__ double sums[kThreads / kWarp];
  if (threadIdx.x == 0) shared = muon_step<float>(p.muon);
  __syncthreads();  // the step's factors are there
  const AdamWStep<float> step = shared;
  const float mu = p.muon.momentum;
  const auto* g = static_cast<const float*>(p.muon.grad);
  auto* m = static_cast<float*>(p.muon.m);
  auto* x = static_cast<X*>(p.x);
  const Piece piece = piece_of(p);
  double sum = 0.0;
  for (int64_t i = piece.begin + threadIdx.x; i < piece.end; i += kThreads) {
    float direction = 0.0f;
    if (step.good) {
      float moment = m[i];
      direction = muon_direction(mu, g[i] * step.gradient, moment);
      m[i] = moment;
    }
    x[i] = from_float<X>(direction);
    const double kept = to_float(from_float<X>(direction));
    sum += kept * kept;
  }
  sum = sum_of_block(sum, sums);
  if (threadIdx.x == 0) p.partial[blockIdx.x] = sum;
}

// Each block adds up the sums of its matrix in one order.
template <class X>
__global__ void __launch_bounds__(kThreads) muon_scale_kernel(MuonPartArgs p) {
  __shared__ double sums[kThreads / kWarp];
  const int64_t each = norm_blocks(p.matrix()), first = blockIdx.x / each * each;
  double sum = 0.0;
  for (int64_t b = threadIdx.x; b < each; b += kThreads) sum += p.partial[first + b];
  const double norm = sqrt(sum_of_block(sum, sums));
  const float factor = static_cast<float>(1.0 / (norm > 1e-7 ? norm : 1e-7));
  auto* x = static_cast<X*>(p.x);
  const Piece piece = piece_of(p);
  for (int64_t i = piece.begin + threadIdx.x; i < piece.end; i += kThreads)
    x[i] = from_float<X>(to_float(x[i]) * factor);
}

template <class X>
__global__ void __launch_bounds__(kThreads) muon_apply_kernel(MuonPartArgs p) {
  __shared__ AdamWStep<float> shared;
  if (threadIdx.x == 0) shared = muon_step<float>(p.muon);
  __syncthreads();  // the step's factors are there
  const AdamWStep<float> step = shared;
  if (!step.good) return;
  const float size = muon_size<float>(p.muon);
  const auto* x = static_cast<const X*>(p.x);
  auto *w = static_cast<float*>(p.muon.master), *ema = static_cast<float*>(p.muon.ema);
  const Piece piece = piece_of(p);
  for (int64_t i = piece.begin + threadIdx.x; i < piece.end; i += kThreads) {
    float value = w[i];
    value -= step.lr * (size * to_float(x[i]) + step.decay * value);
    w[i] = value;
    if (ema != nullptr) ema[i] = step.ema * ema[i] + (1.0f - step.ema) * value;
    if (p.muon.compute != nullptr) static_cast<X*>(p.muon.compute)[i] = from_float<X>(value);
  }
}

// The kernel of the type that products have, which is that of the compute copy.
#define SAT_MUON_KERNEL(name)                                                          \
  void name##_cuda(const Context& ctx, const MuonPartArgs& x) {                        \
    const auto blocks = static_cast<unsigned>(x.muon.batch * norm_blocks(x.matrix())); \
    const cudaStream_t stream = cuda::stream_of(ctx);                                  \
    switch (x.muon.product_type()) {                                                   \
      case DType::bf16:                                                                \
        name##_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(x);              \
        break;                                                                         \
      case DType::f16:                                                                 \
        name##_kernel<__half><<<blocks, kThreads, 0, stream>>>(x);                     \
        break;                                                                         \
      default:                                                                         \
        name##_kernel<float><<<blocks, kThreads, 0, stream>>>(x);                      \
    }                                                                                  \
    SAT_CUDA_LAUNCHED(#name "_kernel");                                                \
  }

}  // namespace

SAT_MUON_KERNEL(muon_momentum)
SAT_MUON_KERNEL(muon_scale)
SAT_MUON_KERNEL(muon_apply)

}  // namespace saturate::kernels
