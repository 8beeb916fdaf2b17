// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/dropout.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/embedding/embedding_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

// One block, one row; N columns a thread at a time.
template <class T, int N>
__global__ void embedding_forward_kernel(EmbeddingArgs x) {
  const int64_t t = blockIdx.x;
  const int64_t id = x.ids != nullptr ? x.ids[t] - x.first_id : t;
  const bool known = id >= 0 && id < x.vocab;
  const T* row = static_cast<const T*>(x.table) + (known ? id : 0) * x.cols;
  const float* position = nullptr;
  if (x.position_table != nullptr) {
    int64_t p = x.positions[t];
    p = p < 0 ? 0 : (p < x.max_positions ? p : x.max_positions - 1);
    position = static_cast<const float*>(x.position_table) + p * x.cols;
  }
  const Dropout dropout(x.rng, x.dropout);
  for (int64_t c = threadIdx.x * N; c < x.cols; c += blockDim.x * N) {
    float v[N] = {};
    if (known) load(v, row + c);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= x.scale;
    if (position != nullptr) {
      float p[N];
      load(p, position + c);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += p[i];
    }
    dropout.apply(v, dropout.row(t) + c);
    store(static_cast<T*>(x.y) + t * x.cols + c, v);
  }
}

template <class T, int N>
void launch(const Context& ctx, const EmbeddingArgs& x) {
  const int64_t needed = (x.cols + N - 1) / N;
  const int threads = needed >= 256 ? 256 : static_cast<int>((needed + 31) / 32 * 32);
  embedding_forward_kernel<T, N>
      <<<static_cast<unsigned>(x.rows), threads, 0, cuda::stream_of(ctx)>>>(x);
  SAT_CUDA_LAUNCHED("embedding_forward_kernel");
}

}  // namespace

void embedding_forward_cuda(const Context& ctx, const EmbeddingArgs& x) {
  with_device_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool wide =
        x.cols % kWidth<T> == 0 && x.rng.draws_in_fours(x.cols) &&
        aligned16(static_cast<const char*>(x.table), static_cast<const char*>(x.position_table),
                  static_cast<const char*>(x.y));
    wide ? launch<T, kWidth<T>>(ctx, x) : launch<T, 1>(ctx, x);
  });
}

}  // namespace saturate::kernels
