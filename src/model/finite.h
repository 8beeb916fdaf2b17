// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace saturate::model {

/// Decoding met a position at which no token has a finite score: the weights, or what is computed
/// from them, are too large. What would be decoded has no meaning.
class NonFiniteScores : public Error {
 public:
  explicit NonFiniteScores(const std::string& op);
};

// Index of the first value that is infinite or not a number; values.size() when all are finite.
// Reads at the speed of memory.
size_t first_not_finite(std::span<const float> values) noexcept;
// The same for `count` values in f32 or f64.
size_t first_not_finite(DType type, const void* values, size_t count) noexcept;

// Refuses a parameter's values, in f32 or f64, that are infinite or not numbers. Errors:
// invalid_argument naming the parameter, the value and the remedy.
void require_finite(const std::string& parameter, DType type, const void* values, size_t count);

}  // namespace saturate::model
