// SPDX-License-Identifier: Apache-2.0
#include <cfloat>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/loss/cross_entropy_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // relative error 2^-22
  return y;
}

struct RowArgs {
  const int32_t* targets;
  float* loss;
  float* nll;
  int64_t ld;
  int vocab;
  float smoothing, grad_scale;
  const float* device_scale;
};

// Largest logit, sum of 2^((z - top) log2 e) and sum of the logits of some columns of one row.
struct Partial {
  float top = -FLT_MAX, sum = 0.0f, total = 0.0f;
};

// `first` is the column of v[0]. Columns from vocab on count as -inf and add nothing.
template <int N>
__device__ __forceinline__ void add(Partial& p, float (&v)[N], int first, int vocab) {
  if (first + N <= vocab) {
#pragma unroll
    for (int i = 0; i < N; ++i) p.total += v[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + i < vocab)
        p.total += v[i];
      else
        v[i] = -CUDART_INF_F;
    }
  }
  float top = v[0];
#pragma unroll
  for (int i = 1; i < N; ++i) top = fmaxf(top, v[i]);
  if (top > p.top) {
    p.sum *= exp2_fast((p.top - top) * kLog2E);
    p.top = top;
  }
  const float shift = -p.top * kLog2E;
#pragma unroll
  for (int i = 0; i < N; ++i) p.sum += exp2_fast(fmaf(v[i], kLog2E, shift));
}

enum class Keep { nothing, in_shared, in_global };  // where the second visit finds the row

// First visit of a row of `vocab` columns: every thread reduces its own, and where it is to be kept
// in shared memory puts them there.
template <class T, int N, Keep keep>
__device__ __forceinline__ Partial reduce_row(const T* z, T* cached, int vocab) {
  constexpr int kInFlight = 3;  // loads a thread has under way: covers the latency of memory
  const int step = static_cast<int>(blockDim.x) * N;
  Partial p;
  for (int c0 = threadIdx.x * N; c0 < vocab; c0 += kInFlight * step) {
    Packed<T, N> raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int c = c0 + u * step;
      if (c < vocab) raw[u] = *reinterpret_cast<const Packed<T, N>*>(z + c);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int c = c0 + u * step;
      if (c >= vocab) break;
      if constexpr (keep == Keep::in_shared) {
        *reinterpret_cast<Packed<T, N>*>(cached + c) = raw[u];  // read again by this thread only
      }
      float v[N];
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = to_float(raw[u].a[0].v[i]);
      add(p, v, c, vocab);
    }
  }
  return p;
}

template <class T, int N>
__device__ __forceinline__ void clear_row(T* z, int ld) {
  const float zeros[N] = {};
  for (int c = threadIdx.x * N; c < ld; c += static_cast<int>(blockDim.x) * N) store(z + c, zeros);
}

// Second visit: softmax minus the smoothed target, which is column `target` if that is among them.
// cached is z or its copy.
template <class T, int N>
__device__ __forceinline__ void write_gradient(T* z, const T* cached, int ld, int vocab, int target,
                                               float z_target, float top, float sum, float scale,
                                               float smoothing, float uniform) {
  const int step = static_cast<int>(blockDim.x) * N;
  const float shift = -top * kLog2E, inverse = scale / sum, offset = scale * uniform;
  for (int c = threadIdx.x * N; c < ld; c += step) {
    float v[N] = {};
    if (c < vocab) {
      load(v, cached + c);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        v[i] = fmaf(exp2_fast(fmaf(v[i], kLog2E, shift)), inverse, -offset);
        if (c + i >= vocab) v[i] = 0.0f;
      }
      if (target >= c && target < c + N) {
        const float g =
            scale * (exp2_fast(fmaf(z_target, kLog2E, shift)) / sum - 1.0f + smoothing) - offset;
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = c + i == target ? g : v[i];
      }
    }
    store(z + c, v);
  }
}

// loss and nll of this block's row.
__device__ __forceinline__ void write_loss(const RowArgs& x, float lse, float z_target, float total,
                                           float uniform) {
  const float nll = lse - z_target;
  const float smooth = x.smoothing > 0.0f ? x.smoothing * lse - uniform * total : 0.0f;
  x.nll[blockIdx.x] = nll;
  x.loss[blockIdx.x] = (1.0f - x.smoothing) * nll + smooth;
}

// One block, one row. The row crosses from global memory once and waits in shared memory for its
// log-sum-exp; rows too long for that are read twice.
template <class T, int N, Keep keep>
__global__ void __launch_bounds__(1024) cross_entropy_kernel(T* logits, RowArgs x) {
  extern __shared__ uint4 row_storage[];
  __shared__ float scratch[kWarp];
  T* const z = logits + static_cast<int64_t>(blockIdx.x) * x.ld;
  T* const cached = keep == Keep::in_shared ? reinterpret_cast<T*>(row_storage) : z;
  const int target = x.targets[blockIdx.x];
  const int ld = static_cast<int>(x.ld);

  if (target < 0) {
    if (threadIdx.x == 0) x.loss[blockIdx.x] = x.nll[blockIdx.x] = 0.0f;
    if constexpr (keep != Keep::nothing) clear_row<T, N>(z, ld);
    return;
  }
  const bool valid = target < x.vocab;
  const float z_target = valid ? to_float(z[target]) : CUDART_NAN_F;
  const Partial p = reduce_row<T, N, keep>(z, cached, x.vocab);
  const float top = block_max(p.top, scratch);
  const float sum = block_sum(p.sum * exp2_fast((p.top - top) * kLog2E), scratch);
  const float total = x.smoothing > 0.0f ? block_sum(p.total, scratch) : 0.0f;
  const float uniform = x.smoothing / static_cast<float>(x.vocab);
  if (threadIdx.x == 0) write_loss(x, top + logf(sum), z_target, total, uniform);
  if constexpr (keep != Keep::nothing) {
    const float scale =
        valid ? x.grad_scale * (x.device_scale ? *x.device_scale : 1.0f) : CUDART_NAN_F;
    write_gradient<T, N>(z, cached, ld, x.vocab, target, z_target, top, sum, scale, x.smoothing,
                         uniform);
  }
}

// One block, one row, of which this rank has `classes` columns that count.
template <class T, int N>
__global__ void __launch_bounds__(1024)
    loss_statistics_kernel(const T* logits, const int32_t* targets, float4* statistics, int64_t ld,
                           int64_t first_class, int classes) {
  __shared__ float scratch[kWarp];
  const T* const z = logits + static_cast<int64_t>(blockIdx.x) * ld;
  const int target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) statistics[blockIdx.x] = {-FLT_MAX, 0.0f, 0.0f, 0.0f};
    return;
  }
  const Partial p = reduce_row<T, N, Keep::nothing>(z, nullptr, classes);
  const float top = block_max(p.top, scratch);
  const float sum = block_sum(p.sum * exp2_fast((p.top - top) * kLog2E), scratch);
  const float total = block_sum(p.total, scratch);
  const int64_t column = target - first_class;
  if (threadIdx.x == 0) {
    const bool mine = column >= 0 && column < classes;
    statistics[blockIdx.x] = {top, sum, mine ? to_float(z[column]) : 0.0f, total};
  }
}

// One block, one row. Every thread joins the ranks' statistics, in the order of ranks.
template <class T, int N>
__global__ void __launch_bounds__(512)
    cross_entropy_finish_kernel(T* logits, RowArgs x, const float4* statistics, int parts,
                                int64_t first_class, int classes, bool gradient) {
  T* const z = logits + static_cast<int64_t>(blockIdx.x) * x.ld;
  const int target = x.targets[blockIdx.x];
  const int ld = static_cast<int>(x.ld);
  if (target < 0) {
    if (threadIdx.x == 0) x.loss[blockIdx.x] = x.nll[blockIdx.x] = 0.0f;
    if (gradient) clear_row<T, N>(z, ld);
    return;
  }
  const float4* const row = statistics + blockIdx.x;
  float top = -FLT_MAX;
  for (int p = 0; p < parts; ++p) top = fmaxf(top, row[static_cast<int64_t>(p) * gridDim.x].x);
  float sum = 0.0f, z_target = 0.0f, total = 0.0f;
  for (int p = 0; p < parts; ++p) {
    const float4 s = row[static_cast<int64_t>(p) * gridDim.x];
    sum += s.y * exp2_fast((s.x - top) * kLog2E);
    z_target += s.z;
    total += s.w;
  }
  const bool valid = target < x.vocab;
  if (!valid) z_target = CUDART_NAN_F;
  const float uniform = x.smoothing / static_cast<float>(x.vocab);
  if (threadIdx.x == 0) write_loss(x, top + logf(sum), z_target, total, uniform);
  if (!gradient) return;
  const float scale =
      valid ? x.grad_scale * (x.device_scale ? *x.device_scale : 1.0f) : CUDART_NAN_F;
  const int64_t column = target - first_class;
  const int own = column >= 0 && column < classes ? static_cast<int>(column) : -1;
  write_gradient<T, N>(z, z, ld, classes, own, z_target, top, sum, scale, x.smoothing, uniform);
}

RowArgs row_args(const CrossEntropyArgs& x) {
  return {x.targets,
          static_cast<float*>(x.loss),
          static_cast<float*>(x.nll),
          x.ld,
          static_cast<int>(x.vocab),
          x.label_smoothing,
          x.grad_scale,
          x.device_scale};
}

int uncached_threads(int64_t ld) { return ld >= 32768 ? 512 : 128; }

template <class T, int N, Keep keep>
void launch(const Context& ctx, const CrossEntropyArgs& x, int threads, size_t shared_bytes) {
  auto* const kernel = cross_entropy_kernel<T, N, keep>;
  if (shared_bytes > 0) {
    SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
  }
  kernel<<<static_cast<unsigned>(x.rows), threads, shared_bytes, cuda::stream_of(ctx)>>>(
      static_cast<T*>(x.logits), row_args(x));
  SAT_CUDA_LAUNCHED("cross_entropy_kernel");
}

template <class T, int N>
void run(const Context& ctx, const CrossEntropyArgs& x) {
  if (!x.write_gradient) return launch<T, N, Keep::nothing>(ctx, x, uncached_threads(x.ld), 0);
  int per_block = 0, per_multiprocessor = 0;
  SAT_CUDA(cudaDeviceGetAttribute(&per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                  ctx.device.index));
  SAT_CUDA(cudaDeviceGetAttribute(&per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                  ctx.device.index));
  const size_t bytes = (static_cast<size_t>(x.ld) * sizeof(T) + 15) / 16 * 16;
  const size_t with_static =
      bytes + 2048;  // scratch (128 bytes) and what the system reserves (1 KiB)
  if (with_static > static_cast<size_t>(per_block)) {
    return launch<T, N, Keep::in_global>(ctx, x, uncached_threads(x.ld), 0);
  }
  // The blocks that a multiprocessor holds share 1024 threads of 64 registers: while one loads,
  // another computes and a third stores.
  const int blocks = static_cast<int>(static_cast<size_t>(per_multiprocessor) / with_static);
  const int threads = 1024 / blocks / kWarp * kWarp;
  launch<T, N, Keep::in_shared>(ctx, x, threads < 64 ? 64 : threads, bytes);
}

template <class T, int N>
void run(const Context& ctx, const LossStatisticsArgs& x) {
  loss_statistics_kernel<T, N>
      <<<static_cast<unsigned>(x.rows), uncached_threads(x.ld), 0, cuda::stream_of(ctx)>>>(
          static_cast<const T*>(x.logits), x.targets, static_cast<float4*>(x.statistics), x.ld,
          x.first_class, static_cast<int>(classes_among(x.ld, x.first_class, x.vocab)));
  SAT_CUDA_LAUNCHED("loss_statistics_kernel");
}

template <class T, int N>
void run(const Context& ctx, const CrossEntropyFinishArgs& a) {
  const CrossEntropyArgs& x = a.forward;
  cross_entropy_finish_kernel<T, N>
      <<<static_cast<unsigned>(x.rows), uncached_threads(x.ld), 0, cuda::stream_of(ctx)>>>(
          static_cast<T*>(x.logits), row_args(x), static_cast<const float4*>(a.statistics),
          static_cast<int>(a.parts), a.first_class,
          static_cast<int>(classes_among(x.ld, a.first_class, x.vocab)), x.write_gradient);
  SAT_CUDA_LAUNCHED("cross_entropy_finish_kernel");
}

// In 16-byte accesses where rows begin on them.
template <class Args>
void run_typed(const Context& ctx, const Args& a, const void* logits, int64_t ld, DType dtype) {
  with_device_type(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool wide = ld % kWidth<T> == 0 && aligned16(logits);
    wide ? run<T, kWidth<T>>(ctx, a) : run<T, 1>(ctx, a);
  });
}

// One block: the sums of a few ten thousand rows take microseconds.
__global__ void loss_totals_kernel(const float* loss, const float* nll, const int32_t* targets,
                                   int64_t rows, double* totals, bool accumulate) {
  __shared__ double shared[3][kWarp];
  double sums[3] = {};
#pragma unroll 4
  for (int64_t t = threadIdx.x; t < rows; t += blockDim.x) {
    sums[0] += loss[t];
    sums[1] += nll[t];
    sums[2] += targets[t] >= 0 ? 1.0 : 0.0;
  }
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int i = 0; i < 3; ++i) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      sums[i] += __shfl_xor_sync(0xFFFFFFFFu, sums[i], offset);
    }
    if (lane == 0) shared[i][warp] = sums[i];
  }
  __syncthreads();  // every warp's sums are there
  if (threadIdx.x < 3) {
    double sum = accumulate ? totals[threadIdx.x] : 0.0;
    for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) sum += shared[threadIdx.x][w];
    totals[threadIdx.x] = sum;
  }
}

}  // namespace

void cross_entropy_cuda(const Context& ctx, const CrossEntropyArgs& x) {
  run_typed(ctx, x, x.logits, x.ld, x.dtype);
}

void loss_statistics_cuda(const Context& ctx, const LossStatisticsArgs& x) {
  run_typed(ctx, x, x.logits, x.ld, x.dtype);
}

void cross_entropy_finish_cuda(const Context& ctx, const CrossEntropyFinishArgs& x) {
  run_typed(ctx, x, x.forward.logits, x.forward.ld, x.forward.dtype);
}

void loss_totals_cuda(const Context& ctx, const LossTotalsArgs& x) {
  loss_totals_kernel<<<1, 1024, 0, cuda::stream_of(ctx)>>>(
      static_cast<const float*>(x.loss), static_cast<const float*>(x.nll), x.targets, x.rows,
      x.totals, x.accumulate);
  SAT_CUDA_LAUNCHED("loss_totals_kernel");
}

}  // namespace saturate::kernels
