// SPDX-License-Identifier: Apache-2.0
// Checks that the entry points of several kernel families share. All throw Error{invalid_argument}.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "base/dtype.h"
#include "base/error.h"
#include "base/philox.h"

namespace saturate::kernels {

struct NamedSize {
  const char* name;
  int64_t value;
};
struct NamedPointer {
  const char* name;
  const void* pointer;
};

void require_sizes(const char* op, std::initializer_list<NamedSize> sizes);  // none negative
void require_pointers(const char* op, std::initializer_list<NamedPointer> pointers);  // none null
void require_float(const char* op, DType dtype);                                      // not i32
// p in [0, 1), and counters to draw from when p > 0.
void require_dropout(const char* op, float p, const RngRef& rng);
// `rng` with the size of its matrix filled in where it is the operation's own, (rows, cols), which
// must lie inside.
RngRef whole_matrix(const char* op, RngRef rng, int64_t rows, int64_t cols);

// Why an implementation refuses a dtype; null when it takes it.
constexpr Fit fits_cpu(DType dtype) noexcept {
  if (dtype == DType::f32 || dtype == DType::f64) return {};
  return {"the CPU computes in f32 and f64 only; use fp32 precision there"};
}
constexpr Fit fits_cuda(DType dtype) noexcept {
  if (dtype != DType::f64) return {};
  return {"f64 is for gradient checks on the CPU only"};
}
// CUDA kernels that number elements in 32 bits.
constexpr Fit fits_cuda(DType dtype, int64_t elements) noexcept {
  if (elements >= (int64_t{1} << 32)) return {"2^32 or more elements (32-bit index arithmetic)"};
  return fits_cuda(dtype);
}

}  // namespace saturate::kernels
