// SPDX-License-Identifier: Apache-2.0
#include "ops/factors.h"

#include "base/error.h"

namespace saturate {

std::vector<FactorShape> factor_shapes(const ParameterSpec& p) {
  const bool vector = p.rows == 1 || p.cols == 1;
  const int64_t length = vector ? p.size() : p.rows;  // what blocks cut
  std::vector<int64_t> blocks = p.blocks;
  if (blocks.empty()) blocks.push_back(length);
  std::vector<FactorShape> out;
  int64_t at = 0;
  for (const int64_t block : blocks) {
    if (vector) {
      out.push_back({.first = at, .rows = 1, .cols = block});
    } else {
      const int64_t first = at * p.cols;
      out.push_back(block == 1 ? FactorShape{.first = first, .rows = 1, .cols = p.cols}
                               : FactorShape{.first = first, .rows = block, .cols = p.cols});
    }
    at += block;
  }
  SAT_ASSERT(at == length);
  if (!vector) out.back().rows -= p.padding_rows;
  return out;
}

int64_t factor_count(const ParameterSpec& p) {
  int64_t sum = 0;
  for (const FactorShape& s : factor_shapes(p)) sum += s.factors();
  return sum;
}

}  // namespace saturate
