// SPDX-License-Identifier: Apache-2.0
// What rotary.cpp shares with the implementations.
#pragma once
#include "base/philox.h"
#include "kernels/rotary/rotary.h"

namespace saturate::kernels {

// What becomes of a channel's frequency, see rotary.h.
template <class T>
SAT_HD T slowed_frequency(const RotaryArgs& a, T frequency) {
  if (a.factor == 1.0f) return frequency;
  const T slow = frequency / static_cast<T>(a.factor);
  if (a.original == 0) return slow;
  const T turns = static_cast<T>(a.original) * frequency / static_cast<T>(6.283185307179586);
  const T share = (turns - static_cast<T>(a.low)) / static_cast<T>(a.high - a.low);
  if (share <= T(0)) return slow;
  if (share >= T(1)) return frequency;
  return (T(1) - share) * slow + share * frequency;
}

void rotary_cpu(const Context& ctx, const RotaryArgs& args);
void rotary_cuda(const Context& ctx, const RotaryArgs& args);

}  // namespace saturate::kernels
