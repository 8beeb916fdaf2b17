// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/validate.h"

#include <fmt/format.h>

namespace saturate::kernels {

void require_sizes(const char* op, std::initializer_list<NamedSize> sizes) {
  for (const NamedSize& s : sizes) {
    if (s.value < 0) {
      throw Error(Errc::invalid_argument, op,
                  fmt::format("{} is {}: sizes may not be negative", s.name, s.value));
    }
  }
}

void require_pointers(const char* op, std::initializer_list<NamedPointer> pointers) {
  for (const NamedPointer& p : pointers) {
    if (p.pointer == nullptr) {
      throw Error(Errc::invalid_argument, op, fmt::format("{} is null: it is needed here", p.name));
    }
  }
}

void require_float(const char* op, DType dtype) {
  if (dtype == DType::i32) {
    throw Error(Errc::invalid_argument, op, "dtype is i32: use f64, f32, bf16 or f16");
  }
}

void require_dropout(const char* op, float p, const RngRef& rng) {
  if (!(p >= 0.0f && p < 1.0f)) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("dropout is {}: it must be at least 0 and less than 1", p));
  }
  if (p > 0.0f && rng.state == nullptr) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("dropout is {} but rng.state is null: give the counters' address", p));
  }
}

RngRef whole_matrix(const char* op, RngRef rng, int64_t rows, int64_t cols) {
  if (rng.rows == 0) rng.rows = rng.first_row + rows;
  if (rng.columns == 0) rng.columns = rng.first_column + cols;
  if (rng.first_row < 0 || rng.first_column < 0 || rng.first_row + rows > rng.rows ||
      rng.first_column + cols > rng.columns) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("rows {} + {} and columns {} + {} of random numbers do not lie in the "
                            "matrix ({}, {}): give the place and the size of the whole",
                            rng.first_row, rows, rng.first_column, cols, rng.rows, rng.columns));
  }
  return rng;
}

}  // namespace saturate::kernels
