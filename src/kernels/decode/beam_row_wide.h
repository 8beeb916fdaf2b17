// SPDX-License-Identifier: Apache-2.0
// Passes over a row of logits in vectors of sixteen floats, with the bits of beam_row_cpu.cpp, which calls
// them where the processor has AVX-512.
#pragma once
#include <cstdint>

namespace saturate::kernels {

// The largest of z[0 .. n) that are numbers; minus infinity where none is.
float largest_avx512(const float* z, int64_t n);
// sum_i e^(z[i] - top), in sixteen lanes and then by halves.
float exp_sum_avx512(const float* z, int64_t n, float top);

}  // namespace saturate::kernels
