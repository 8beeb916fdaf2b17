// SPDX-License-Identifier: Apache-2.0
// What Adafactor keeps of a parameter in place of moments.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/parameters.h"

namespace saturate {

// A matrix of a parameter: of rows and columns one second moment each. Or a vector, (1, cols), with one
// for each element. Rows that pad a vocabulary have none.
struct FactorShape {
  int64_t first = 0;  // element of the parameter
  int64_t rows = 1, cols = 0;
  int64_t factors() const noexcept { return rows > 1 ? rows + cols : cols; }
};

// Each of q, k and v by itself (ParameterSpec::blocks). The parameter is whole on this rank.
std::vector<FactorShape> factor_shapes(const ParameterSpec& p);
int64_t factor_count(const ParameterSpec& p);

}  // namespace saturate
