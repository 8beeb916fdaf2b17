// SPDX-License-Identifier: Apache-2.0
// A block takes one head of one sequence in chunks of kChunk tokens: within a chunk by its scores,
// as attention does, across chunks by the state in shared memory. All arithmetic is fp32.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "model/mixers/linear_attention/linear_attention_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::model {
namespace {

using kernels::from_float;
using kernels::kWarp;
using kernels::to_float;

constexpr int kChunk = kLinearAttentionChunk;
constexpr int kThreads = kChunk * kChunk;  // one score a thread

__device__ __forceinline__ float feature(float x) { return x > 0.0f ? x + 1.0f : expf(x); }
// f'(x) as a function of f(x): 1 above zero, exp(x) = f(x) below.
__device__ __forceinline__ float slope(float feature) { return fminf(feature, 1.0f); }

// What a block works on: rows [begin, end) and the columns of its head.
template <class T>
struct Head {
  __device__ explicit Head(const LinearAttentionArgs& a)
      : D(static_cast<int>(a.head_size)),
        W(D + 1),
        width(a.heads * a.head_size),
        column(blockIdx.y * a.head_size),
        begin(a.cu[blockIdx.x]),
        end(blockIdx.x < a.sequences ? a.cu[blockIdx.x + 1] : static_cast<int>(a.rows)) {}
  // The last block of a head has the rows behind all sequences.
  __device__ bool outside(const LinearAttentionArgs& a) const { return blockIdx.x == a.sequences; }
  // Of a (rows, parts * width) matrix; part 0 is q, 1 k, 2 v.
  __device__ int64_t at(int64_t row, int parts, int part) const {
    return (row * parts + part) * width + column;
  }

  int D, W;
  int64_t width, column;
  int begin, end;
};

// tile[i][d] = f(x[first + i][d]); zero for rows from the end on.
template <class T>
__device__ void load_features(float* tile, const void* qkv, int part, const Head<T>& h, int first) {
  for (int e = threadIdx.x; e < kChunk * h.D; e += kThreads) {
    const int row = first + e / h.D;
    tile[e] = row < h.end
                  ? feature(to_float(static_cast<const T*>(qkv)[h.at(row, 3, part) + e % h.D]))
                  : 0.0f;
  }
}

// tile[i] = [v[first + i], 1]; zero for rows from the end on.
template <class T>
__device__ void load_values(float* tile, const void* qkv, const Head<T>& h, int first) {
  for (int e = threadIdx.x; e < kChunk * h.W; e += kThreads) {
    const int row = first + e / h.W, c = e % h.W;
    float v = row < h.end ? 1.0f : 0.0f;
    if (row < h.end && c < h.D) v = to_float(static_cast<const T*>(qkv)[h.at(row, 3, 2) + c]);
    tile[e] = v;
  }
}

// tile[i] = the gradients of row first + i's numerator and, in the last column, denominator; zero
// for rows from the end on. A warp makes a row.
template <class T>
__device__ void load_gradients(float* tile, const LinearAttentionBackwardArgs& b, const Head<T>& h,
                               int first) {
  const LinearAttentionArgs& a = b.forward;
  const int lane = threadIdx.x % kWarp;
  for (int i = threadIdx.x / kWarp; i < kChunk; i += kThreads / kWarp) {
    const int row = first + i;
    const bool valid = row < h.end;
    const float scale =
        valid ? 1.0f / static_cast<const float*>(a.denominator)[blockIdx.y * a.rows + row] : 0.0f;
    float sum = 0.0f;
    for (int c = lane; c < h.D; c += kWarp) {
      const float d_o = valid ? to_float(static_cast<const T*>(b.d_o)[h.at(row, 1, 0) + c]) : 0.0f;
      const float o = valid ? to_float(static_cast<const T*>(a.o)[h.at(row, 1, 0) + c]) : 0.0f;
      tile[i * h.W + c] = d_o * scale;
      sum += d_o * o;
    }
    sum = kernels::warp_sum(sum);
    if (lane == 0) tile[i * h.W + h.D] = -sum * scale;
  }
}

// scores[i][j] = a[i] . b[j] for j <= i, otherwise zero; rows of `size` elements.
__device__ void make_scores(float* scores, const float* a, const float* b, int size) {
  const int i = threadIdx.x / kChunk, j = threadIdx.x % kChunk;
  float sum = 0.0f;
  if (j <= i) {
    for (int d = 0; d < size; ++d) sum += a[i * size + d] * b[j * size + d];
  }
  scores[threadIdx.x] = sum;
}

// state[d][c] += sum_i left[i][d] * right[i][c]
template <class T>
__device__ void take_in(float* state, const float* left, const float* right, const Head<T>& h) {
  for (int e = threadIdx.x; e < h.D * h.W; e += kThreads) {
    const int d = e / h.W, c = e % h.W;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += left[i * h.D + d] * right[i * h.W + c];
    state[e] += sum;
  }
}

__device__ void clear(float* state, int count) {
  for (int e = threadIdx.x; e < count; e += kThreads) state[e] = 0.0f;
}

template <class T>
__device__ void zero_rows(void* out, int parts, const Head<T>& h) {
  for (int row = h.begin; row < h.end; ++row) {
    for (int part = 0; part < parts; ++part) {
      for (int c = threadIdx.x; c < h.D; c += kThreads) {
        static_cast<T*>(out)[h.at(row, parts, part) + c] = from_float<T>(0.0f);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) linear_attention_fwd_kernel(LinearAttentionArgs a) {
  extern __shared__ float shared[];
  const Head<T> h(a);
  float* denominator = static_cast<float*>(a.denominator) + blockIdx.y * a.rows;
  if (h.outside(a)) {
    zero_rows(a.o, 1, h);
    for (int row = h.begin + threadIdx.x; row < h.end; row += kThreads) denominator[row] = 1.0f;
    return;
  }
  float* state = shared;                // (D, W): sum of f(k) [v, 1]
  float* q = state + h.D * h.W;         // (kChunk, D)
  float* k = q + kChunk * h.D;          // (kChunk, D)
  float* v = k + kChunk * h.D;          // (kChunk, W)
  float* sums = v + kChunk * h.W;       // (kChunk, W): numerator and denominator
  float* scores = sums + kChunk * h.W;  // (kChunk, kChunk)
  clear(state, h.D * h.W);
  for (int first = h.begin; first < h.end; first += kChunk) {
    load_features(q, a.qkv, 0, h, first);
    load_features(k, a.qkv, 1, h, first);
    load_values(v, a.qkv, h, first);
    __syncthreads();  // the tiles, and the state of the chunk before, are there
    make_scores(scores, q, k, h.D);
    __syncthreads();  // the scores are there
    for (int e = threadIdx.x; e < kChunk * h.W; e += kThreads) {
      const int i = e / h.W, c = e % h.W;
      float sum = 0.0f;
      for (int j = 0; j <= i; ++j) sum += scores[i * kChunk + j] * v[j * h.W + c];
      for (int d = 0; d < h.D; ++d) sum += q[i * h.D + d] * state[d * h.W + c];
      sums[e] = sum;
    }
    __syncthreads();  // the sums are there, and the state has been read
    for (int e = threadIdx.x; e < kChunk * h.W; e += kThreads) {
      const int row = first + e / h.W, c = e % h.W;
      if (row >= h.end) break;  // so are all further rows
      const float below = sums[e / h.W * h.W + h.D] + kLinearAttentionEps;
      if (c < h.D) {
        static_cast<T*>(a.o)[h.at(row, 1, 0) + c] = from_float<T>(sums[e] / below);
      } else {
        denominator[row] = below;
      }
    }
    take_in(state, k, v, h);
    __syncthreads();  // the tiles have been read
  }
}

// d_q[i] = f'(q[i]) (S[i] g[i]): the state of the forward pass, which goes from first to last.
template <class T>
__global__ void __launch_bounds__(kThreads)
    linear_attention_bwd_queries_kernel(LinearAttentionBackwardArgs b) {
  extern __shared__ float shared[];
  const LinearAttentionArgs& a = b.forward;
  const Head<T> h(a);
  if (h.outside(a)) {
    zero_rows(b.d_qkv, 3, h);
    return;
  }
  float* state = shared;             // (D, W): sum of f(k) [v, 1]
  float* k = state + h.D * h.W;      // (kChunk, D)
  float* v = k + kChunk * h.D;       // (kChunk, W)
  float* g = v + kChunk * h.W;       // (kChunk, W): gradients of numerator and denominator
  float* scores = g + kChunk * h.W;  // (kChunk, kChunk): g[i] . [v[j], 1]
  clear(state, h.D * h.W);
  for (int first = h.begin; first < h.end; first += kChunk) {
    load_features(k, a.qkv, 1, h, first);
    load_values(v, a.qkv, h, first);
    load_gradients(g, b, h, first);
    __syncthreads();  // the tiles, and the state of the chunk before, are there
    make_scores(scores, g, v, h.W);
    __syncthreads();  // the scores are there
    for (int e = threadIdx.x; e < kChunk * h.D; e += kThreads) {
      const int i = e / h.D, d = e % h.D, row = first + i;
      if (row >= h.end) break;  // so are all further rows
      float sum = 0.0f;
      for (int j = 0; j <= i; ++j) sum += scores[i * kChunk + j] * k[j * h.D + d];
      for (int c = 0; c < h.W; ++c) sum += state[d * h.W + c] * g[i * h.W + c];
      const int64_t at = h.at(row, 3, 0) + d;
      const float q = feature(to_float(static_cast<const T*>(a.qkv)[at]));
      static_cast<T*>(b.d_qkv)[at] = from_float<T>(slope(q) * sum);
    }
    __syncthreads();  // the state has been read
    take_in(state, k, v, h);
    __syncthreads();  // the tiles have been read
  }
}

// d_k[j] = f'(k[j]) (R[j] [v[j], 1]) and d_v[j] = f(k[j]) R[j] with R[j] = sum_{i >= j} f(q[i])
// g[i], from last to first.
template <class T>
__global__ void __launch_bounds__(kThreads)
    linear_attention_bwd_keys_kernel(LinearAttentionBackwardArgs b) {
  extern __shared__ float shared[];
  const LinearAttentionArgs& a = b.forward;
  const Head<T> h(a);
  if (h.outside(a)) return;                  // the other kernel's
  float* state = shared;                     // (D, W): sum of f(q) g over the chunks behind
  float* q = state + h.D * h.W;              // (kChunk, D)
  float* k = q + kChunk * h.D;               // (kChunk, D)
  float* v = k + kChunk * h.D;               // (kChunk, W)
  float* g = v + kChunk * h.W;               // (kChunk, W)
  float* scores = g + kChunk * h.W;          // (kChunk, kChunk): f(q[i]) . f(k[j])
  float* values = scores + kChunk * kChunk;  // (kChunk, kChunk): g[i] . [v[j], 1]
  clear(state, h.D * h.W);
  const int chunks = (h.end - h.begin + kChunk - 1) / kChunk;
  for (int first = h.begin + (chunks - 1) * kChunk; first >= h.begin; first -= kChunk) {
    load_features(q, a.qkv, 0, h, first);
    load_features(k, a.qkv, 1, h, first);
    load_values(v, a.qkv, h, first);
    load_gradients(g, b, h, first);
    __syncthreads();  // the tiles, and the state of the chunk behind, are there
    make_scores(scores, q, k, h.D);
    make_scores(values, g, v, h.W);
    __syncthreads();  // the scores are there
    for (int e = threadIdx.x; e < kChunk * h.D; e += kThreads) {
      const int j = e / h.D, d = e % h.D, row = first + j;
      if (row >= h.end) break;  // so are all further rows
      float d_k = 0.0f, d_v = 0.0f;
      for (int i = j; i < kChunk; ++i) {
        d_k += values[i * kChunk + j] * q[i * h.D + d];
        d_v += scores[i * kChunk + j] * g[i * h.W + d];
      }
      for (int c = 0; c < h.W; ++c) d_k += state[d * h.W + c] * v[j * h.W + c];
      for (int c = 0; c < h.D; ++c) d_v += k[j * h.D + c] * state[c * h.W + d];
      T* out = static_cast<T*>(b.d_qkv);
      out[h.at(row, 3, 1) + d] = from_float<T>(slope(k[e]) * d_k);
      out[h.at(row, 3, 2) + d] = from_float<T>(d_v);
    }
    __syncthreads();  // the state has been read
    take_in(state, q, g, h);
    __syncthreads();  // the tiles have been read
  }
}

// A block takes one head of one row, a thread one column of its state.
template <class T>
__global__ void linear_attention_step_kernel(LinearAttentionStepArgs a) {
  extern __shared__ float shared[];
  const int D = static_cast<int>(a.head_size), W = D + 1, c = threadIdx.x;
  const int64_t row = blockIdx.x, width = a.heads * D, column = blockIdx.y * D;
  float* q = shared;     // (D)
  float* k = q + D;      // (D)
  float* below = k + D;  // the denominator
  T* o = static_cast<T*>(a.o) + row * width + column;
  if (a.finished != nullptr && a.finished[row] != 0) {
    if (c < D) o[c] = from_float<T>(0.0f);
    return;
  }
  const T* qkv = static_cast<const T*>(a.qkv) + row * 3 * width + column;
  float v = 1.0f;
  if (c < D) {
    q[c] = feature(to_float(qkv[c]));
    k[c] = feature(to_float(qkv[width + c]));
    v = to_float(qkv[2 * width + c]);
  }
  __syncthreads();  // q and k are there
  const bool empty = a.positions[row] == 0;
  float sum = 0.0f;
  if (c < W) {
    float* state = static_cast<float*>(a.state) + (row * a.heads + blockIdx.y) * D * W + c;
    for (int d = 0; d < D; ++d) {
      const float s = (empty ? 0.0f : state[d * W]) + k[d] * v;
      state[d * W] = s;
      sum += q[d] * s;
    }
  }
  if (c == D) *below = sum + kLinearAttentionEps;
  __syncthreads();  // the denominator is there
  if (c < D) o[c] = from_float<T>(sum / *below);
}

template <class Kernel, class Args>
void launch(const Context& ctx, Kernel kernel, const Args& args, const LinearAttentionArgs& a,
            const char* name) {
  const int bytes = static_cast<int>(linear_attention_shared_bytes(a.head_size));
  SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(static_cast<unsigned>(a.sequences + 1), static_cast<unsigned>(a.heads));
  kernel<<<grid, kThreads, static_cast<size_t>(bytes), cuda::stream_of(ctx)>>>(args);
  SAT_CUDA_LAUNCHED(name);
}

}  // namespace

int64_t linear_attention_cuda_room(Device device) noexcept {
  int bytes = 0;
  return cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.index) ==
                 cudaSuccess
             ? bytes
             : 0;
}

void linear_attention_forward_cuda(const Context& ctx, const LinearAttentionArgs& a) {
  kernels::with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(ctx, linear_attention_fwd_kernel<T>, a, a, "linear_attention_fwd_kernel");
  });
}

void linear_attention_backward_cuda(const Context& ctx, const LinearAttentionBackwardArgs& b) {
  kernels::with_device_type(b.forward.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(ctx, linear_attention_bwd_queries_kernel<T>, b, b.forward,
           "linear_attention_bwd_queries_kernel");
    launch(ctx, linear_attention_bwd_keys_kernel<T>, b, b.forward,
           "linear_attention_bwd_keys_kernel");
  });
}

void linear_attention_step_cuda(const Context& ctx, const LinearAttentionStepArgs& a) {
  kernels::with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto threads = static_cast<unsigned>((a.head_size + 1 + kWarp - 1) / kWarp * kWarp);
    const dim3 grid(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.heads));
    linear_attention_step_kernel<T>
        <<<grid, threads, static_cast<size_t>(2 * a.head_size + 1) * sizeof(float),
           cuda::stream_of(ctx)>>>(a);
    SAT_CUDA_LAUNCHED("linear_attention_step_kernel");
  });
}

}  // namespace saturate::model
