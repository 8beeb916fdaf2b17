// SPDX-License-Identifier: Apache-2.0
// What one thread multiplies: plain data alone, since it passes into a file that is compiled for newer
// processors. No inline function may be shared with that file: the linker keeps one copy of it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace saturate::kernels::bf16 {

// What becomes of a sum before it is stored: relu keeps it or 0, slope keeps it where aux > 0, else 0.
enum class Finish : uint8_t { none, relu, slope };

// d = finish(op(a) op(b) + bias + beta c): row-major, op(a) (m, k), op(b) (k, n); all at least 1.
struct Part {
  const float* a = nullptr;
  const float* b = nullptr;
  const float* c = nullptr;     // (m, n), read when beta != 0; may be d
  const float* bias = nullptr;  // (n) or null
  float* d = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0;
  bool ta = false, tb = false;  // a is stored (k, m); b is stored (n, k)
  float beta = 0;
  Finish finish = Finish::none;
  float* aux = nullptr;  // (m, n): written by relu (the sum; may be null), read by slope
  int64_t ld_aux = 0;
  char* scratch = nullptr;  // kScratchBytes, aligned to 64
};

// Of the packed operands in units of four bytes, two bf16 that are neighbours in k: a block of A, 96
// rows, and a slice of B, 512 columns, by kSteps units. The two stay in a second-level cache of 1 MiB.
constexpr int64_t kRows = 6, kColumns = 64, kBlockRows = 96, kSliceColumns = 512, kSteps = 256;
// A's rows of one block lie this far apart where they are rounded as they lie: a line more than the
// units take, or they would meet in few sets of the cache.
constexpr int64_t kRowBytes = kSteps * 4 + 64;
constexpr size_t kScratchBytes =
    static_cast<size_t>(kBlockRows * kRowBytes) + static_cast<size_t>(kSliceColumns * kSteps * 4);

void multiply_avx512(const Part& part);  // needs AVX512-BF16

}  // namespace saturate::kernels::bf16
