// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/philox.h"

namespace saturate::kernels {

// Dropout on the CPU: the same mask as the GPU's for the same counters.
class HostDropout {
 public:
  static constexpr int64_t kChunk = 1024;  // elements of one call of factors()

  HostDropout(const RngRef& rng, float p);  // `rng` as whole_matrix() returns it
  bool active() const noexcept { return threshold_ != 0; }
  int64_t row(int64_t r) const noexcept { return rng_.first() + r * rng_.columns; }  // its column 0

  // out[i] = 0 or 1/(1-p) for element number first + i, i < n <= kChunk. T is float or double.
  template <class T>
  void factors(int64_t first, int64_t n, T* out) const;

 private:
  RngRef rng_;
  float p_;
  uint32_t threshold_;
};

}  // namespace saturate::kernels
