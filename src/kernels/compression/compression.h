// SPDX-License-Identifier: Apache-2.0
// Sums that travel in 8 bits, with what rounding takes from them kept for the next time (error
// feedback). For both operations:
//
// Types     dtype is f32, or f64 on the CPU only; sums are made in it.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     element by element, so bitwise equal run to run, and on every device.
// Errors    invalid_argument for sizes, pointers and types; unsupported when no implementation fits;
//           device.
// Cost      memory traffic: every operand is read once and every result written once.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// 256 consecutive elements as they travel: what codes[i] stands for is codes[i] * scale. The scale is
// that of the largest of them, 127, and has 16 significant bits, so that a product with it is exact.
// Of a block with an element that is not finite it is NaN, and so is all that the block stands for.
constexpr int64_t kCodedElements = 256;
struct CodedBlock {
  int8_t codes[kCodedElements];
  float scale;
};
static_assert(sizeof(CodedBlock) == 260);

// Blocks that hold so many elements.
constexpr int64_t coded_blocks(int64_t elements) noexcept {
  return (elements + kCodedElements - 1) / kCodedElements;
}

// v = x + residual + what inputs[0], inputs[1], ... stand for, added in this order
// y = v in blocks, each element rounded to the nearest code; residual = v - what y stands for
// What does not travel now is in the residual, half of a scale at most: over many calls the sum of
// what y stood for is the sum of what was given, but for the last residual. A block that is not
// finite leaves the residual as it was.
//
// Shapes    x, residual (count); y (blocks) and inputs (input_count, blocks), with at least
//           coded_blocks(count) blocks. Elements behind the count are zero.
// Aliasing  none.
// Source    Seide et al., Interspeech 2014 (error feedback); Dettmers, arXiv:1511.04561 (8 bits, a
//           scale for each block).
struct CompressArgs {
  const void* x = nullptr;
  void* residual = nullptr;
  const CodedBlock* inputs = nullptr;
  int64_t input_count = 0;
  CodedBlock* y = nullptr;
  int64_t count = 0, blocks = 0;
  DType dtype = DType::f32;
};
void compress(const Context& ctx, const CompressArgs& args);

// y[i] = what x stands for.
//
// Shapes    y (count); x (coded_blocks(count)).
// Aliasing  none.
// Source    the formula.
struct DecompressArgs {
  const CodedBlock* x = nullptr;
  void* y = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;
};
void decompress(const Context& ctx, const DecompressArgs& args);

}  // namespace saturate::kernels
