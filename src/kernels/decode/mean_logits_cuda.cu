// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/decode/mean_logits_impl.h"
#include "kernels/decode/ranking.cuh"
#include "kernels/decode/token_rules.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

// One block, one row. A model's sum is made as beam_step() makes it, so that it has the same bits.
template <class T, int N>
__global__ void __launch_bounds__(512)
    mean_logits_kernel(const __grid_constant__ MeanLogitsArgs a) {
  __shared__ float scratch[kWarp];
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const int64_t row = blockIdx.x;
  __shared__ RuleScratch rule_scratch;
  const BeamState& b = a.state;
  const BeamSentence& sentence = b.sentences[row / a.beam];
  const int t = b.positions[row], models = static_cast<int>(a.models);
  if (b.finished[row] != 0 || static_cast<const float*>(b.scores)[row] == kNever ||
      t < sentence.prefix)
    return;
  const int vocab = static_cast<int>(a.vocab);
  const int32_t start = b.starts[row];
  const int32_t ends[1] = {a.eos};
  const auto said = [&](int j) {
    return j + 1 == t ? b.ids[row] : b.tokens[b.slots[start + j + 1]];
  };
  double sums = 0;
  for (int m = 0; m < models; ++m) {
    T* const z = static_cast<T*>(a.logits[m]) + row * a.ld;
    apply_rules(sentence.rules, a.suppressed, ends, 1, 0, t, said, vocab, z, rule_scratch);
    const RowScan scan = scan_row<T, N>(z, vocab, -1);
    const float top = block_max(scan.top, scratch);
    const float sum = block_sum(scan.sum * __expf(scan.top - top), scratch);
    sums += a.weights[m] * static_cast<double>(top + logf(sum));
  }
  if (threadIdx.x == 0) static_cast<float*>(a.log_sums)[row] = static_cast<float>(sums);
  __syncthreads();  // all have read the logits that the mean may overwrite
  float* const mean = static_cast<float*>(a.mean) + row * a.ld;
  for (int c = threadIdx.x * N; c < vocab; c += blockDim.x * N) {
    double total[N] = {};
    for (int m = 0; m < models; ++m) {
      float v[N];
      load(v, static_cast<const T*>(a.logits[m]) + row * a.ld + c);
#pragma unroll
      for (int i = 0; i < N; ++i) total[i] += a.weights[m] * static_cast<double>(v[i]);
    }
    float out[N];
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = static_cast<float>(total[i]);
    store(mean + c, out);
  }
}

template <class T, int N>
void launch(const Context& ctx, const MeanLogitsArgs& a) {
  const int threads = a.vocab >= 16384 ? 512 : 256;  // as beam_step()'s, for the same sums
  mean_logits_kernel<T, N>
      <<<static_cast<unsigned>(a.sentences * a.beam), threads, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("mean_logits_kernel");
}

}  // namespace

void mean_logits_cuda(const Context& ctx, const MeanLogitsArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kWidth<T>;
    bool wide = aligned16(a.mean) && a.ld % N == 0;
    for (int64_t m = 0; m < a.models; ++m)
      wide = wide && aligned16(a.logits[static_cast<size_t>(m)]);
    wide ? launch<T, N>(ctx, a) : launch<T, 1>(ctx, a);
  });
}

}  // namespace saturate::kernels
