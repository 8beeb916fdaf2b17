// SPDX-License-Identifier: Apache-2.0
// Which random number decides about which element of attention's dropout, the same in every
// implementation.
#pragma once
#include <cstdint>

#include "base/philox.h"

namespace saturate::kernels {

// A block of 128 random bits holds eight numbers of 16 bits, of which the lower 15 count, and
// decides on queries i, i + 8 and keys j, j + 1, j + 8, j + 9 of a sequence. Such a patch belongs to
// one thread of a tensor core's 16 x 16 results with queries in rows, and to two with keys in rows.

// What a number must reach for its element to be kept: P(drop) = p to 2^-16 (to 2^-15 near 1).
SAT_HD uint32_t attention_dropout_least(float p) {
  const auto least = static_cast<uint32_t>(p * 32768.0f + 0.5f);
  return least < 32767 ? least : 32767;
}

// Kernels that compare two numbers at once as half-precision ones (mma/dropout.cuh) take
// p up to this: least is then no more than the bits of infinity.
constexpr float kAttentionDropoutPairs = 31.0f / 32;

// The rows of random numbers of a call: head h's row r of q is row h * rows + first_row + r of the
// result, so that a rank with some of the heads (from first_column on) or some of the rows draws
// what one rank alone would draw there. Cuts between sequences may be anywhere, within a sequence at
// multiples of 16 queries; keys are not cut. Set rows, else the call's own q_rows are all.
SAT_HD RngRef attention_dropout_rows(RngRef rng, int64_t q_rows) {
  if (rng.rows == 0) rng.rows = q_rows;
  rng.first_row += rng.first_column * rng.rows;
  rng.first_column = 0;
  return rng;
}

// Block of random numbers for query i and key j. first_row: of the head (above) plus the sequence's
// first row of q. Keys count below 2^16.
SAT_HD uint64_t attention_dropout_block(int64_t first_row, int64_t i, int64_t j) {
  const int64_t row = first_row + i / 16 * 16 + i % 8;
  return static_cast<uint64_t>(row << 14 | (j / 16 * 4 + j % 8 / 2));
}
// Word of the block that holds the number; its lower half is an even key's.
SAT_HD int attention_dropout_word(int64_t i, int64_t j) {
  return static_cast<int>(j / 8 % 2 * 2 + i / 8 % 2);
}
SAT_HD bool attention_dropout_reaches(uint32_t word, int64_t j, uint32_t least) {
  return j % 2 == 0 ? (word & 0x7FFF) >= least : (word & 0x7FFF0000) >= least << 16;
}

// One element by itself, for who has no neighbours at hand: a block of random numbers for each.
SAT_HD bool attention_dropout_keeps(uint64_t seed, uint64_t micro_step, uint32_t op, uint32_t least,
                                    int64_t first_row, int64_t i, int64_t j) {
  const Random4 r = random_block(seed, micro_step, op, attention_dropout_block(first_row, i, j));
  const int word = attention_dropout_word(i, j);
  const uint32_t low = word % 2 == 0 ? r.x[0] : r.x[1], high = word % 2 == 0 ? r.x[2] : r.x[3];
  return attention_dropout_reaches(word < 2 ? low : high, j, least);
}

}  // namespace saturate::kernels
