// SPDX-License-Identifier: Apache-2.0
#include "yardsticks.h"

#include <algorithm>
#include <cstring>

namespace saturate::gate {

void copy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

void product(float* c, const float* a, const float* b, int n) {
  for (int i = 0; i < n; i += 4)
    for (int j = 0; j < n; j += 16) {
      float sums[4][16] = {};
      for (int k = 0; k < n; ++k)
        for (int r = 0; r < 4; ++r)
          for (int s = 0; s < 16; ++s) sums[r][s] += a[(i + r) * n + k] * b[k * n + j + s];
      for (int r = 0; r < 4; ++r)
        for (int s = 0; s < 16; ++s) c[(i + r) * n + j + s] = sums[r][s];
    }
}

void sort(uint32_t* to, const uint32_t* from, size_t count) {
  std::copy(from, from + count, to);
  std::sort(to, to + count);
}

}  // namespace saturate::gate
