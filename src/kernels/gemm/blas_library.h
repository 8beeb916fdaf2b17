// SPDX-License-Identifier: Apache-2.0
// OpenBLAS, loaded when the first product on the CPU needs it: commands without one start faster,
// and nothing of it runs where memory or processes are limited. Loaded before main() it starts
// threads that retry a failed allocation for ever.
#pragma once
#include <cstdint>
#include <string>

namespace saturate::kernels {

// Loads the library once, with threads of its own switched off, and sees to it that as many
// products at once as there are threads (cpu_threads()) have their buffers: each holds 128 MiB of
// address space, and OpenBLAS waits for ever where it gets none. Call before blas_gemm(), from any
// thread. Errors: unsupported (it is not installed; names the package), out_of_memory (with the
// remedy).
void prepare_blas();

// D = alpha op(A) op(B) + beta D, row-major, in the calling thread; m, n, k and the leading
// dimensions as in cblas_sgemm.
struct BlasShape {
  bool ta, tb;
  int m, n, k, lda, ldb, ldd;
};
void blas_gemm(const BlasShape& s, float alpha, const float* a, const float* b, float beta,
               float* d);
void blas_gemm(const BlasShape& s, double alpha, const double* a, const double* b, double beta,
               double* d);

// The m n k up to which this processor's OpenBLAS may take other kernels, which sum in an order that depends
// on m and n too; 0 where it has none (all but the ones with AVX-512). After prepare_blas() or
// blas_keeps_rows().
int64_t blas_small_product();

// Whether this processor's OpenBLAS sums a row in one order, whatever its place among the rows, but for those
// small products: with AVX-512 alone. Loads it where the processor has that; true where that fails, so that who multiplies
// says why.
bool blas_keeps_rows() noexcept;

// "OpenBLAS 0.3.21 ..." or "" when there is none.
std::string blas_description();

}  // namespace saturate::kernels
