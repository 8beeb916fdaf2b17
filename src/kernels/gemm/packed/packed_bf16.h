// SPDX-License-Identifier: Apache-2.0
// What all products of bf16 weights share. In an unnamed namespace: each file that includes this is
// compiled for a processor of its own.
//
// vdpbf16ps adds the product of the upper halves, then that of the lower, each by a fused multiply-add,
// and takes and makes zeros for what is below the least normal number. So a panel has the earlier of two
// k in the upper half, an element of y is one chain over ascending k, and the others do the same sums
// with denormals switched off.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <cstdint>

namespace saturate::kernels::packed {
namespace {

// Denormals are zeros in this thread while it lives. Other processors than x86-64 keep them.
class NoDenormals {
 public:
#if defined(__x86_64__)
  NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kZeros); }
  ~NoDenormals() { _mm_setcsr(before_); }
#else
  NoDenormals() {}
  ~NoDenormals() {}
#endif
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kZeros = 0x8040;  // of results and of operands
  unsigned before_;
#endif
};

}  // namespace
}  // namespace saturate::kernels::packed
