// SPDX-License-Identifier: Apache-2.0
// Sums per table row in a fixed order without atomics. `order` is cut into chunks of equal length;
// one block sums one chunk. A run of equal ids inside one chunk goes straight to its table row. A
// run that crosses chunk borders leaves one partial sum per chunk in scratch, and a second kernel
// adds those up, so that a token that fills a tenth of the batch is not summed by one block.
#include "kernels/device/dropout.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/embedding/embedding_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kTile = 32;  // entries whose row numbers and ids a block fetches together

// Partial sums of chunk b: of the run that came in from chunk b - 1, and of the one that goes on to
// b + 1.
struct Scratch {
  float* sums;  // (chunks, 2, cols)
  int64_t cols;
  enum Side { incoming, outgoing };
  __device__ float* at(int64_t chunk, Side side) const { return sums + (chunk * 2 + side) * cols; }
};

struct Runs {
  const int32_t* ids;
  const int32_t* order;
  int64_t valid;
  __device__ int32_t id_at(int64_t i) const { return ids[order[i]]; }
  // Entry i goes on with the run of entry i - 1.
  __device__ bool continues(int64_t i) const {
    return i > 0 && i < valid && id_at(i) == id_at(i - 1);
  }
};

// Row of the table that gets the gradient of an id, -1 when there is none.
__device__ __forceinline__ int64_t table_row(const EmbeddingBackwardArgs& x, int32_t id) {
  const int64_t row = id - x.forward.first_id;
  return row >= 0 && row < x.forward.vocab && row != x.zero_row ? row : -1;
}

// One thread of the whole launch adds to an element, so the order is fixed; the atomic is there
// because the memory then adds by itself and the thread does not wait for the old value.
template <int N>
__device__ __forceinline__ void add_to(float* dst, const float (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) atomicAdd(dst + i, v[i]);
}

__device__ __forceinline__ Runs runs_of(const EmbeddingBackwardArgs& x) {
  const int64_t valid = *x.valid_rows;
  return {x.forward.ids, x.order, valid < x.batch_rows ? valid : x.batch_rows};
}

// Grid (chunks, column tiles). Row numbers and ids of 32 entries are fetched together, and
// gradients kAhead rows at a time, so that latencies overlap.
template <class T, int N>
__global__ void embedding_backward_chunk_kernel(EmbeddingBackwardArgs x, Scratch scratch,
                                                int chunk) {
  constexpr int kAhead = 4;
  __shared__ int32_t rows[kTile], ids[kTile + 1];  // row -1: another rank's
  const EmbeddingArgs& f = x.forward;
  const Runs runs = runs_of(x);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = begin + chunk < runs.valid ? begin + chunk : runs.valid;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const bool active = c < f.cols;
  if (blockIdx.x == 0 && x.zero_row >= 0 && active) {
    const float zeros[N] = {};  // nobody adds to it: table_row()
    store(static_cast<float*>(x.d_table) + x.zero_row * f.cols + c, zeros);
  }
  if (begin >= end) return;
  const Dropout dropout(f.rng, f.dropout);
  const bool comes_in = runs.continues(begin), goes_on = runs.continues(end);
  bool first_run = true;
  float sum[N] = {};
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int entries = static_cast<int>(end - tile < kTile ? end - tile : kTile);
    __syncthreads();  // the previous tile has been read
    if (threadIdx.x < entries) {
      const int32_t row = runs.order[tile + threadIdx.x];
      const int64_t mine = row - x.first_row;
      rows[threadIdx.x] = mine >= 0 && mine < f.rows ? static_cast<int32_t>(mine) : -1;
      ids[threadIdx.x] = f.ids[row];
      if (threadIdx.x + 1 == entries)
        ids[entries] = tile + entries < end ? runs.id_at(tile + entries) : 0;
    }
    __syncthreads();  // rows and ids are there
    if (!active) continue;
    for (int i0 = 0; i0 < entries; i0 += kAhead) {
      float d_y[kAhead][N];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (i0 + u < entries && rows[i0 + u] >= 0)
          load(d_y[u], static_cast<const T*>(x.d_y) + rows[i0 + u] * f.cols + c);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int i = i0 + u;
        if (i < entries) {
          if (rows[i] >= 0) {
            dropout.apply(d_y[u], dropout.row(rows[i]) + c);
#pragma unroll
            for (int j = 0; j < N; ++j) sum[j] += f.scale * d_y[u][j];
          }
          const bool last = tile + i + 1 == end;
          const int32_t id = ids[i];
          if (last || ids[i + 1] != id) {  // the run, or its part in this chunk, is complete
            if (first_run && comes_in) {
              store(scratch.at(blockIdx.x, Scratch::incoming) + c, sum);
            } else if (last && goes_on) {
              store(scratch.at(blockIdx.x, Scratch::outgoing) + c, sum);
            } else if (const int64_t row = table_row(x, id); row >= 0) {
              add_to(static_cast<float*>(x.d_table) + row * f.cols + c, sum);
            }
            first_run = false;
#pragma unroll
            for (int j = 0; j < N; ++j) sum[j] = 0.0f;
          }
        }
      }
    }
  }
}

// Grid as above: the block of the chunk where a crossing run starts adds its partial sums.
template <int N>
__global__ void embedding_backward_join_kernel(EmbeddingBackwardArgs x, Scratch scratch,
                                               int chunk) {
  const EmbeddingArgs& f = x.forward;
  const Runs runs = runs_of(x);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk, end = begin + chunk;
  if (!runs.continues(end)) return;
  const int32_t id = runs.id_at(end);
  // The run fills this whole chunk and came in: an earlier block has it.
  if (runs.continues(begin) && runs.id_at(begin) == id) return;
  // Chunks that the run enters follow each other, so counting them finds the last.
  int64_t entered = 0;
  for (int found = static_cast<int>(blockDim.x); found == static_cast<int>(blockDim.x);
       entered += found) {
    const int64_t border = end + (entered + threadIdx.x) * chunk;
    found = __syncthreads_count(runs.continues(border) && runs.id_at(border) == id);
  }
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (c >= f.cols) return;
  float sum[N];
  load(sum, static_cast<const float*>(scratch.at(blockIdx.x, Scratch::outgoing)) + c);
#pragma unroll 8
  for (int64_t b = 1; b <= entered; ++b) {
    float v[N];
    load(v, static_cast<const float*>(scratch.at(blockIdx.x + b, Scratch::incoming)) + c);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += v[j];
  }
  if (const int64_t row = table_row(x, id); row >= 0)
    add_to(static_cast<float*>(x.d_table) + row * f.cols + c, sum);
}

// Grid (positions, column tiles), block (32 column groups, kLanes): lane l takes sequences l, l +
// kLanes, ...
template <class T, int N>
__global__ void embedding_backward_position_kernel(EmbeddingBackwardArgs x) {
  constexpr int kLanes = 8;
  __shared__ float sums[kLanes][32][N];
  const EmbeddingArgs& f = x.forward;
  const int64_t p = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * N;
  const bool to_end = p == f.max_positions - 1;  // later positions were clamped to the last row
  const Dropout dropout(f.rng, f.dropout);
  float sum[N] = {};
#pragma unroll 4
  for (int64_t s = threadIdx.y; s < x.sequences; s += kLanes) {
    const int64_t end = x.cu[s + 1];
    int64_t t = x.cu[s] + p;
    for (const int64_t stop = to_end || t + 1 > end ? end : t + 1; t < stop; ++t) {
      const int64_t row = t - x.first_row;
      if (c >= f.cols || row < 0 || row >= f.rows) continue;
      float d_y[N];
      load(d_y, static_cast<const T*>(x.d_y) + row * f.cols + c);
      dropout.apply(d_y, dropout.row(row) + c);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += d_y[j];
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) sums[threadIdx.y][threadIdx.x][j] = sum[j];
  __syncthreads();  // every lane's sum is there
  if (threadIdx.y != 0 || c >= f.cols) return;
  for (int l = 1; l < kLanes; ++l) {
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += sums[l][threadIdx.x][j];
  }
  float* dst = static_cast<float*>(x.d_position_table) + p * f.cols + c;
  if (x.accumulate_positions) return add_to(dst, sum);
  store(dst, sum);
}

template <class T, int N>
void launch(const Context& ctx, const EmbeddingBackwardArgs& x) {
  const EmbeddingArgs& f = x.forward;
  const cudaStream_t stream = cuda::stream_of(ctx);
  const int64_t groups = (f.cols + N - 1) / N;
  const unsigned threads = groups >= 128 ? 128 : static_cast<unsigned>((groups + 31) / 32 * 32);
  const auto tiles = static_cast<unsigned>((groups + threads - 1) / threads);

  // Tiles, or as short as fills the chip; longer where partial sums would not fit the workspace. One
  // chunk needs none.
  constexpr int64_t kShortest = 8, kBlocks = 264;
  int64_t chunk = kTile;
  const auto chunks = [&] { return (x.batch_rows + chunk - 1) / chunk; };
  while (chunk > kShortest && chunks() * tiles < kBlocks) chunk /= 2;
  const int64_t bytes_per_chunk = 2 * f.cols * static_cast<int64_t>(sizeof(float));
  while (chunks() > 1 && chunks() * bytes_per_chunk > static_cast<int64_t>(ctx.workspace_bytes))
    chunk *= 2;
  const Scratch scratch{static_cast<float*>(ctx.workspace), f.cols};
  if (f.rows > 0 && x.d_table != nullptr) {
    const dim3 grid(static_cast<unsigned>(chunks()), tiles);
    embedding_backward_chunk_kernel<T, N>
        <<<grid, threads, 0, stream>>>(x, scratch, static_cast<int>(chunk));
    SAT_CUDA_LAUNCHED("embedding_backward_chunk_kernel");
    if (grid.x > 1) {
      embedding_backward_join_kernel<N>
          <<<grid, threads, 0, stream>>>(x, scratch, static_cast<int>(chunk));
      SAT_CUDA_LAUNCHED("embedding_backward_join_kernel");
    }
  }
  if (x.d_position_table != nullptr && f.max_positions > 0) {
    const dim3 grid(static_cast<unsigned>(f.max_positions),
                    static_cast<unsigned>((groups + 31) / 32));
    embedding_backward_position_kernel<T, N><<<grid, dim3(32, 8), 0, stream>>>(x);
    SAT_CUDA_LAUNCHED("embedding_backward_position_kernel");
  }
}

}  // namespace

void embedding_backward_cuda(const Context& ctx, const EmbeddingBackwardArgs& x) {
  if (x.d_table != nullptr && !x.accumulate) {
    const auto bytes = static_cast<size_t>(x.forward.vocab * x.forward.cols) * sizeof(float);
    SAT_CUDA(cudaMemsetAsync(x.d_table, 0, bytes, cuda::stream_of(ctx)));
  }
  with_device_type(x.forward.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool wide =
        x.forward.cols % 4 == 0 && x.forward.rng.draws_in_fours(x.forward.cols) &&
        aligned16(static_cast<const char*>(x.d_y), static_cast<const char*>(x.d_table),
                  static_cast<const char*>(x.d_position_table),
                  static_cast<const char*>(ctx.workspace));
    wide ? launch<T, 4>(ctx, x) : launch<T, 1>(ctx, x);
  });
  if (x.d_table != nullptr && x.zero_row >= 0 && x.forward.rows == 0) {
    float* row = static_cast<float*>(x.d_table) + x.zero_row * x.forward.cols;
    const auto bytes = static_cast<size_t>(x.forward.cols) * sizeof(float);
    SAT_CUDA(cudaMemsetAsync(row, 0, bytes, cuda::stream_of(ctx)));
  }
}

}  // namespace saturate::kernels
