// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: the same (seed, micro-batch, site, element) gives the same bits on
// CPU and GPU, in forward and in backward, whatever the order of execution and on however many
// ranks.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Seven rounds pass
// BigCrush (their table 2).
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define SAT_HD __host__ __device__ __forceinline__
#else
#define SAT_HD inline
#endif

namespace saturate {

struct Random4 {
  uint32_t x[4];
};

// x * y in 64 bits. Named as one instruction for the GPU, whose compiler otherwise adds the zeros
// of the upper halves.
SAT_HD uint64_t multiply_wide(uint32_t x, uint32_t y) {
#ifdef __CUDA_ARCH__
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
  return product;
#else
  return static_cast<uint64_t>(x) * y;
#endif
}

SAT_HD Random4 philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 7; ++round) {
    const uint64_t p0 = multiply_wide(0xD2511F53u, c0);
    const uint64_t p1 = multiply_wide(0xCD9E8D57u, c2);
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The random numbers of one operation: a matrix that lies over all ranks, and where in it this
// rank's element (0, 0) is. So a rank draws for its part what one rank alone would draw there.
//   number of element (r, c) = (first_row + r) * columns + first_column + c
// Attention has heads for columns (kernels/attention/dropout.h). `state` lies in the memory of the
// device that runs the kernel: it changes between replays of one captured graph.
struct RngRef {
  const uint64_t* state = nullptr;  // [0] seed, [1] logical micro-batch: its number over all ranks
  uint32_t site = 0;                // unique to the operation within the model; 24 bits
  int64_t first_row = 0, first_column = 0;
  int64_t rows = 0, columns = 0;  // of the matrix over all ranks; 0: the operation's own

  SAT_HD int64_t first() const { return first_row * columns + first_column; }
  // Whether every four columns from a multiple of four on share one draw; cols: the operation's
  // own.
  SAT_HD bool draws_in_fours(int64_t cols) const {
    return first() % 4 == 0 && (columns == cols || columns % 4 == 0);
  }
};

// Four uniform 32-bit numbers for elements 4*block .. 4*block+3 of site `site`.
// `site` takes the top 24 bits of the second counter word, the micro-batch the low 40.
SAT_HD Random4 random_block(uint64_t seed, uint64_t micro_batch, uint32_t site, uint64_t block) {
  return philox4x32(seed, block,
                    (static_cast<uint64_t>(site) << 40) | (micro_batch & 0xFFFFFFFFFFull));
}

// Dropout keeps an element when its random number is >= threshold: P(drop) = p to 2^-32.
SAT_HD uint32_t dropout_threshold(float p) {
  return p >= 1.0f ? 0xFFFFFFFFu : static_cast<uint32_t>(static_cast<double>(p) * 4294967296.0);
}

}  // namespace saturate
