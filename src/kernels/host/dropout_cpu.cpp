// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/dropout.h"

namespace saturate::kernels {

HostDropout::HostDropout(const RngRef& rng, float p)
    : rng_(rng), p_(p), threshold_(p == 0.0f ? 0 : dropout_threshold(p)) {}

template <class T>
void HostDropout::factors(int64_t first, int64_t n, T* out) const {
  const uint64_t seed = rng_.state[0], micro_batch = rng_.state[1];
  const auto first_block = static_cast<uint64_t>(first) / 4;
  const int64_t skip = first % 4;
  const int64_t blocks = (skip + n + 3) / 4;
  uint32_t words[kChunk + 8];
  for (int64_t b = 0; b < blocks; ++b) {
    const Random4 r =
        random_block(seed, micro_batch, rng_.site, first_block + static_cast<uint64_t>(b));
    for (int j = 0; j < 4; ++j) words[4 * b + j] = r.x[j];
  }
  const T keep = T(1) / (T(1) - static_cast<T>(p_));
  for (int64_t i = 0; i < n; ++i) out[i] = words[skip + i] >= threshold_ ? keep : T(0);
}

template void HostDropout::factors(int64_t, int64_t, float*) const;
template void HostDropout::factors(int64_t, int64_t, double*) const;

}  // namespace saturate::kernels
