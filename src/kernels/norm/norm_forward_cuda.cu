// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/dropout.cuh"
#include "kernels/device/early_launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/norm/norm_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kVec = 8;
constexpr int kWarpsPerBlock = 4;  // of the kernel in which a warp owns a row

template <int N>
__device__ __forceinline__ void finish(const NormForwardArgs& a, int64_t c, float mean, float rstd,
                                       float (&v)[N]) {
  float weight[N], bias[N] = {};
  load(weight, static_cast<const float*>(a.weight) + c);
  if (a.bias != nullptr) load(bias, static_cast<const float*>(a.bias) + c);
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = (v[i] - mean) * rstd * weight[i] + bias[i];
}

__device__ __forceinline__ void write_statistics(const NormForwardArgs& a, int64_t r, float mean,
                                                 float rstd) {
  if (a.kind == NormKind::layer_norm) static_cast<float*>(a.mean)[r] = mean;
  static_cast<float*>(a.rstd)[r] = rstd;
}

// A team (a warp or the block) owns a row and keeps it in registers: each byte moves once.
template <class T, Team kTeam, int kPacks>
__global__ void __launch_bounds__(kTeam == Team::warp ? kWarpsPerBlock * kWarp : 1024)
    norm_forward_kernel(NormForwardArgs a) {
  __shared__ float shared[kWarp];
  const int size = kTeam == Team::warp ? kWarp : static_cast<int>(blockDim.x);
  const int member = kTeam == Team::warp ? threadIdx.x % kWarp : threadIdx.x;
  const int64_t r = kTeam == Team::warp
                        ? static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp
                        : static_cast<int64_t>(blockIdx.x);
  const int cols = static_cast<int>(a.cols);
  if (a.rows <= kFewRows) {
    // What stage 3 reads, while the kernel before this one still runs.
    for (int c = member * kVec; c < cols; c += size * kVec) {
      prefetch_to_l2(static_cast<const float*>(a.weight) + c);
      if (a.bias != nullptr) prefetch_to_l2(static_cast<const float*>(a.bias) + c);
    }
    change_over();
  }
  if (r >= a.rows) return;  // whole teams leave
  const int64_t row = r * a.cols;

  // Stage 1: all loads, then dropout, sum and the row's mean.
  float v[kPacks][kVec], b[kPacks][kVec];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (p * size + member) * kVec;
    if (c >= cols) continue;
    load(v[p], static_cast<const T*>(a.x) + row + c);
    if (a.branch != nullptr) load(b[p], static_cast<const T*>(a.branch) + row + c);
  }
  if (a.branch != nullptr) {
    const Dropout drop(a.rng, a.dropout);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * size + member) * kVec;
      if (c >= cols) continue;
      drop.apply(b[p], drop.row(r) + c);
#pragma unroll
      for (int i = 0; i < kVec; ++i) v[p][i] = round_to<T>(v[p][i] + b[p][i]);
      store(static_cast<T*>(a.sum) + row + c, v[p]);
    }
  }
  const float inverse = 1.0f / static_cast<float>(cols);
  float mean = 0.0f;
  if (a.kind == NormKind::layer_norm) {
    float total[1] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if ((p * size + member) * kVec >= cols) continue;
#pragma unroll
      for (int i = 0; i < kVec; ++i) total[0] += v[p][i];
    }
    team_sum<kTeam>(total, shared);
    mean = total[0] * inverse;
  }

  // Stage 2: the variance around that mean, from registers.
  float square[1] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if ((p * size + member) * kVec >= cols) continue;
#pragma unroll
    for (int i = 0; i < kVec; ++i) square[0] += (v[p][i] - mean) * (v[p][i] - mean);
  }
  team_sum<kTeam>(square, shared);
  const float rstd = rsqrtf(square[0] * inverse + a.eps);
  if (member == 0) write_statistics(a, r, mean, rstd);

    // Stage 3: normalise.
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (p * size + member) * kVec;
    if (c >= cols) continue;
    finish(a, c, mean, rstd, v[p]);
    store(static_cast<T*>(a.y) + row + c, v[p]);
  }
}

// Any number of columns and any alignment: the block walks its row three times.
template <class T>
__global__ void __launch_bounds__(256) norm_forward_any_kernel(NormForwardArgs a) {
  __shared__ float shared[kWarp];
  const int64_t r = blockIdx.x, row = r * a.cols;
  const T* s = static_cast<const T*>(a.x) + row;
  if (a.branch != nullptr) {
    const Dropout drop(a.rng, a.dropout);
    T* sum = static_cast<T*>(a.sum) + row;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
      float b[1] = {to_float(static_cast<const T*>(a.branch)[row + c])};
      drop.apply(b, drop.row(r) + c);
      sum[c] = from_float<T>(to_float(s[c]) + b[0]);
    }
    s = sum;  // each thread reads back what it wrote itself
  }
  const float inverse = 1.0f / static_cast<float>(a.cols);
  float mean = 0.0f;
  if (a.kind == NormKind::layer_norm) {
    float total = 0.0f;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) total += to_float(s[c]);
    mean = block_sum(total, shared) * inverse;
  }
  float square = 0.0f;
  for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
    const float d = to_float(s[c]) - mean;
    square += d * d;
  }
  const float rstd = rsqrtf(block_sum(square, shared) * inverse + a.eps);
  if (threadIdx.x == 0) write_statistics(a, r, mean, rstd);
  for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
    float v[1] = {to_float(s[c])};
    finish(a, c, mean, rstd, v);
    store(static_cast<T*>(a.y) + row + c, v);
  }
}

template <class T, Team kTeam, int kPacks>
void launch(const Context& ctx, const NormForwardArgs& a) {
  const int64_t per_block = kTeam == Team::warp ? kWarpsPerBlock : 1;
  const int64_t packs = (a.cols / kVec + kPacks - 1) / kPacks;
  const int64_t threads =
      kTeam == Team::warp ? kWarpsPerBlock * kWarp : (packs + kWarp - 1) / kWarp * kWarp;
  SAT_CUDA(launch_kernel(starts_early(ctx, a.rows), norm_forward_kernel<T, kTeam, kPacks>,
                         dim3(static_cast<unsigned>((a.rows + per_block - 1) / per_block)),
                         dim3(static_cast<unsigned>(threads)), 0, cuda::stream_of(ctx), a));
  SAT_CUDA_LAUNCHED("norm_forward_kernel");
}

template <class T>
void launch_any(const Context& ctx, const NormForwardArgs& a) {
  norm_forward_any_kernel<T><<<static_cast<unsigned>(a.rows), 256, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("norm_forward_any_kernel");
}

}  // namespace

void norm_forward_cuda(const Context& ctx, const NormForwardArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int64_t kWarpCols = kWarp * kVec, kBlockCols = 2 * 1024 * kVec;
    const bool wide = a.cols % kVec == 0 && a.rng.draws_in_fours(a.cols) &&
                      aligned16(a.x, a.branch, a.sum, a.y, a.weight, a.bias);
    if (!wide || a.cols > kBlockCols) return launch_any<T>(ctx, a);
    if (a.cols <= kWarpCols) return launch<T, Team::warp, 1>(ctx, a);
    if (a.cols <= 2 * kWarpCols) return launch<T, Team::warp, 2>(ctx, a);
    if (a.cols <= 4 * kWarpCols) return launch<T, Team::warp, 4>(ctx, a);
    launch<T, Team::block, 2>(ctx, a);
  });
}

}  // namespace saturate::kernels
