// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/optimizer/adafactor_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ double sum_of_warp(double v) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    v += __shfl_xor_sync(0xFFFFFFFFu, v, offset);
  return v;
}
// The same in every thread. `shared` has a place for each warp and is free again at the next call's
// first barrier.
__device__ __forceinline__ double sum_of_block(double v, double* shared) {
  v = sum_of_warp(v);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = v;
  __syncthreads();
  double sum = 0.0;
  for (int w = 0; w < kThreads / kWarp; ++w) sum += shared[w];
  return sum;
}

__device__ __forceinline__ AdafactorStep<float> step_of_block(const AdafactorArgs& x) {
  __shared__ AdafactorStep<float> shared;
  if (threadIdx.x == 0) shared = adafactor_step<float>(x);
  __syncthreads();  // the step's factors are there
  return shared;
}

__device__ __forceinline__ int64_t last_row(const AdafactorPiece& piece, const AdafactorTensor& t) {
  const int64_t last = piece.row + kAdafactorRows;
  return last < t.rows ? last : t.rows;
}

__device__ __forceinline__ double square_of(float g, double scale) {
  const double v = static_cast<double>(g) * scale;
  return v * v;
}

// Sums that no rank's piece of this rank writes.
__global__ void __launch_bounds__(kThreads) adafactor_clear_kernel(AdafactorArgs x) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < x.factor_count) x.sums[i] = 0.0;
}

// A block has a piece; warps share its rows, then threads its columns, which the cache still has.
__global__ void __launch_bounds__(kThreads) adafactor_sums_kernel(AdafactorArgs x) {
  const AdafactorStep<float> step = step_of_block(x);
  const AdafactorPiece piece = x.pieces[blockIdx.x];
  const AdafactorTensor t = x.tensors[piece.tensor];
  const int64_t last = last_row(piece, t);
  const double scale = step.adamw.good ? static_cast<double>(step.adamw.gradient) : 0.0;
  const float* grad = static_cast<const float*>(x.grad) + t.grad;
  if (!step.adamw.good) return;  // nothing reads what is left undone
  if (t.rows == 1) {
    for (int64_t c = t.begin + threadIdx.x; c < t.end; c += kThreads)
      x.sums[t.factors + c] = square_of(grad[c], scale);
    return;
  }
  for (int64_t r = piece.row + threadIdx.x / kWarp; r < last; r += kThreads / kWarp) {
    const AdafactorSpan span = adafactor_span(t, r);
    double sum = 0.0;
    for (int64_t c = span.begin + threadIdx.x % kWarp; c < span.end; c += kWarp)
      sum += square_of(grad[r * t.cols + c], scale);
    sum = sum_of_warp(sum);
    if (threadIdx.x % kWarp == 0 && span.begin < span.end) x.sums[t.factors + r] = sum;
  }
  double* columns = adafactor_partials(x) + piece.partial;
  for (int64_t c = threadIdx.x; c < t.cols; c += kThreads) {
    double sum = 0.0;
    for (int64_t r = piece.row; r < last; ++r) {
      const AdafactorSpan span = adafactor_span(t, r);
      if (c >= span.begin && c < span.end) sum += square_of(grad[r * t.cols + c], scale);
    }
    columns[c] = sum;
  }
}

// A thread has a column of a matrix, and adds up its pieces in order.
__global__ void __launch_bounds__(kThreads) adafactor_join_kernel(AdafactorArgs x) {
  const AdafactorTensor t = x.tensors[blockIdx.y];
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t.rows == 1 || c >= t.cols) return;
  const double* columns = adafactor_partials(x) + t.partial;
  double sum = 0.0;
  for (int64_t p = 0; p < t.pieces; ++p) sum += columns[p * t.cols + c];
  x.sums[t.factors + t.rows + c] = sum;
}

// A block has a tensor.
__global__ void __launch_bounds__(kThreads) adafactor_moments_kernel(AdafactorArgs x) {
  __shared__ double shared[kThreads / kWarp];
  const AdafactorStep<float> step = step_of_block(x);
  if (!step.adamw.good) return;
  const AdafactorTensor t = x.tensors[blockIdx.x];
  float* factors = static_cast<float*>(x.factors);
  double sum = 0.0;
  for (int64_t r = threadIdx.x; t.rows > 1 && r < t.rows; r += kThreads) {
    const int64_t at = t.factors + r;
    factors[at] =
        adafactor_moment(step.keep, factors[at], x.sums[at] / static_cast<double>(t.cols));
    sum += static_cast<double>(factors[at]);
  }
  for (int64_t c = threadIdx.x; c < t.cols; c += kThreads) {
    const int64_t at = adafactor_columns(t) + c;
    factors[at] =
        adafactor_moment(step.keep, factors[at], x.sums[at] / static_cast<double>(t.rows));
  }
  sum = sum_of_block(sum, shared);
  if (threadIdx.x == 0) adafactor_means(x)[blockIdx.x] = sum / static_cast<double>(t.rows);
}

__global__ void __launch_bounds__(kThreads) adafactor_squares_kernel(AdafactorArgs x) {
  __shared__ double shared[kThreads / kWarp];
  const AdafactorStep<float> step = step_of_block(x);
  if (!step.adamw.good) return;
  const AdafactorPiece piece = x.pieces[blockIdx.x];
  const AdafactorTensor t = x.tensors[piece.tensor];
  const float* factors = static_cast<const float*>(x.factors);
  const float* columns = factors + adafactor_columns(t);
  const double mean = adafactor_means(x)[piece.tensor];
  const float* grad = static_cast<const float*>(x.grad) + t.grad;
  const float* master = static_cast<const float*>(x.master) + t.master;
  double of_update = 0.0, of_weights = 0.0;
  for (int64_t r = piece.row; r < last_row(piece, t); ++r) {
    const AdafactorSpan span = adafactor_span(t, r);
    const float row = step.adamw.gradient * adafactor_row(t, factors, mean, r);
    for (int64_t c = span.begin + threadIdx.x; c < span.end; c += kThreads) {
      const double u = static_cast<double>(grad[r * t.cols + c] * row / root(columns[c]));
      const double w = static_cast<double>(master[r * t.cols + c]);
      of_update += u * u;
      of_weights += w * w;
    }
  }
  of_update = sum_of_block(of_update, shared);
  of_weights = sum_of_block(of_weights, shared);
  if (threadIdx.x > 0) return;
  adafactor_squares(x)[2 * int64_t{blockIdx.x}] = of_update;
  adafactor_squares(x)[2 * int64_t{blockIdx.x} + 1] = of_weights;
}

// A block has a tensor; a bad step's totals are zero.
__global__ void __launch_bounds__(kThreads) adafactor_totals_kernel(AdafactorArgs x) {
  __shared__ double shared[kThreads / kWarp];
  const AdafactorStep<float> step = step_of_block(x);
  const AdafactorTensor t = x.tensors[blockIdx.x];
  const double* squares = adafactor_squares(x) + 2 * t.first_piece;
  double of_update = 0.0, of_weights = 0.0;
  for (int64_t p = threadIdx.x; step.adamw.good && p < t.pieces; p += kThreads) {
    of_update += squares[2 * p];
    of_weights += squares[2 * p + 1];
  }
  of_update = sum_of_block(of_update, shared);
  of_weights = sum_of_block(of_weights, shared);
  if (threadIdx.x > 0) return;
  x.totals[2 * int64_t{blockIdx.x}] = of_update;
  x.totals[2 * int64_t{blockIdx.x} + 1] = of_weights;
}

template <class C>
__global__ void __launch_bounds__(kThreads) adafactor_apply_kernel(AdafactorArgs x) {
  const AdafactorStep<float> step = step_of_block(x);
  if (!step.adamw.good) return;
  const AdafactorPiece piece = x.pieces[blockIdx.x];
  const AdafactorTensor t = x.tensors[piece.tensor];
  __shared__ AdafactorSize<float> shared;
  if (threadIdx.x == 0) shared = adafactor_size(x, t, step, x.totals + 2 * piece.tensor);
  __syncthreads();  // the tensor's factors are there
  const AdafactorSize<float> size = shared;
  const float* factors = static_cast<const float*>(x.factors);
  const float* columns = factors + adafactor_columns(t);
  const double mean = adafactor_means(x)[piece.tensor];
  const float* grad = static_cast<const float*>(x.grad) + t.grad;
  float* master = static_cast<float*>(x.master) + t.master;
  float* ema = x.ema == nullptr ? nullptr : static_cast<float*>(x.ema) + t.master;
  C* compute = x.compute == nullptr ? nullptr : static_cast<C*>(x.compute) + t.compute;
  for (int64_t r = piece.row; r < last_row(piece, t); ++r) {
    const AdafactorSpan span = adafactor_span(t, r);
    const float row = size.update * step.adamw.gradient * adafactor_row(t, factors, mean, r);
    for (int64_t c = span.begin + threadIdx.x; c < span.end; c += kThreads) {
      const int64_t i = r * t.cols + c;
      float w = master[i];
      w -= grad[i] * row / root(columns[c]) + size.decay * w;
      master[i] = w;
      if (ema != nullptr) ema[i] = step.adamw.ema * ema[i] + (1.0f - step.adamw.ema) * w;
      if (compute != nullptr) compute[i] = from_float<C>(w);
    }
  }
}

unsigned blocks_of(int64_t n) { return static_cast<unsigned>(n); }

}  // namespace

void adafactor_sums_cuda(const Context& ctx, const AdafactorArgs& x) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  adafactor_clear_kernel<<<blocks_of((x.factor_count + kThreads - 1) / kThreads), kThreads, 0,
                           stream>>>(x);
  SAT_CUDA_LAUNCHED("adafactor_clear_kernel");
  if (x.piece_count == 0) return;
  adafactor_sums_kernel<<<blocks_of(x.piece_count), kThreads, 0, stream>>>(x);
  SAT_CUDA_LAUNCHED("adafactor_sums_kernel");
  if (x.widest == 0) return;  // vectors alone
  const dim3 grid(blocks_of((x.widest + kThreads - 1) / kThreads), blocks_of(x.tensor_count));
  adafactor_join_kernel<<<grid, kThreads, 0, stream>>>(x);
  SAT_CUDA_LAUNCHED("adafactor_join_kernel");
}

void adafactor_measure_cuda(const Context& ctx, const AdafactorArgs& x) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  adafactor_moments_kernel<<<blocks_of(x.tensor_count), kThreads, 0, stream>>>(x);
  SAT_CUDA_LAUNCHED("adafactor_moments_kernel");
  if (x.piece_count > 0) {
    adafactor_squares_kernel<<<blocks_of(x.piece_count), kThreads, 0, stream>>>(x);
    SAT_CUDA_LAUNCHED("adafactor_squares_kernel");
  }
  adafactor_totals_kernel<<<blocks_of(x.tensor_count), kThreads, 0, stream>>>(x);
  SAT_CUDA_LAUNCHED("adafactor_totals_kernel");
}

void adafactor_apply_cuda(const Context& ctx, const AdafactorArgs& x) {
  if (x.piece_count == 0) return;
  const unsigned blocks = blocks_of(x.piece_count);
  const cudaStream_t stream = cuda::stream_of(ctx);
  if (x.compute_type == DType::f16) {
    adafactor_apply_kernel<__half><<<blocks, kThreads, 0, stream>>>(x);
  } else {
    adafactor_apply_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(x);
  }
  SAT_CUDA_LAUNCHED("adafactor_apply_kernel");
}

}  // namespace saturate::kernels
