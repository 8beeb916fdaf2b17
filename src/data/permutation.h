// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace saturate::data {

// A pseudo-random permutation of [0, count): the order of an epoch as a function of (seed, epoch),
// any element of it in O(1) time and no memory, so that shuffling needs no buffer and resuming no
// replay.
//
// A Feistel network on the smallest even number of bits that holds count, with Philox as its round
// function; results outside [0, count) are walked along their cycle (less than 4 steps on average).
// Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
class Permutation {
 public:
  Permutation(int64_t count, uint64_t seed, int64_t epoch);  // count >= 1
  int64_t operator()(int64_t i) const;                       // i in [0, count)

 private:
  uint64_t once(uint64_t x) const;
  uint64_t count_, seed_, epoch_;
  int half_bits_;
};

}  // namespace saturate::data
