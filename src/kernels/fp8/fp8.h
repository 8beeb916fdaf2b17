// SPDX-License-Identifier: Apache-2.0
// Operands of products in 8-bit floating point with a scale a tensor. For all of it:
//
// Aliasing  none.
// Stream    enqueued on ctx.stream; graph-capturable; never synchronises.
// Order     bitwise equal run to run.
// Errors    invalid_argument for sizes and pointers; unsupported where no implementation fits; device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/activation/activation.h"
#include "kernels/optimizer/step_state.h"
#include "runtime/context.h"

namespace saturate::kernels {

// e4m3: four bits of exponent, three of mantissa, up to 448, no infinity. e5m2: up to 57344.
enum class Fp8Format : uint8_t { e4m3, e5m2 };

// The scaling of one tensor, in device memory; zeros before its first step. Scales are powers of two.
constexpr int kFp8History = 16;
struct alignas(16) Fp8Site {
  float inverse = 0;  // of what the last fp8_quantize() multiplied by
  float scale = 0;    // codes are of scale * x; 0: no step has ended with it yet
  float amax = 0;     // largest |x| of the step so far
  float unused = 0;
  float history[kFp8History] = {};  // of the steps before, newest first
};

struct FoldList;  // device/fold_columns.h

// What is rounded: x itself; f(x), of what the activation f is given; or d f'(given) of x = d, the
// gradient of f's result.
enum class Fp8Prepare : uint8_t { nothing, activation, slope };

// y = code(scale * v), rounded to nearest even, v prepared of x; what is too large becomes the largest code.
// scale is the site's; before its first step has ended, 2^floor(log2(largest code / (2 amax))) of what amax is
// by then, for which v is looked through before it is rounded. `scale_known` says that a step has ended.
//
// Shapes    x and given (rows, cols); y (rows, cols), transposed (cols, rows) and copy (rows, cols), v itself,
//           of which each may be null; column_sum (cols), sums of v's columns, or null, with partial, scratch
//           of fp8_partial_bytes(); cols, and with transposed rows, multiples of 16.
// Types     x, given and copy in f32, bf16 or f16, on the CPU f32; sums in f32; codes in 8 bits.
// Cost      x (and given) is read once, and once more in the first step; three bytes of traffic an element
//           of a 16-bit type, four with both results.
// Source    OCP 8-bit Floating Point Specification 1.0; delayed scaling: Micikevicius et al.,
//           arXiv:2209.05433.
struct Fp8QuantizeArgs {
  const void* x = nullptr;
  uint8_t* y = nullptr;
  uint8_t* transposed = nullptr;
  Fp8Site* site = nullptr;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;
  Fp8Format format = Fp8Format::e4m3;
  Fp8Prepare prepare = Fp8Prepare::nothing;
  ActivationKind activation = ActivationKind::identity;
  const void* given = nullptr;
  void* copy = nullptr;
  float* column_sum = nullptr;
  float* partial = nullptr;
  bool add_to_column_sum = false;
  FoldList* later = nullptr;  // as ColumnSumArgs has it
  bool scale_known = false;
};
void fp8_quantize(const Context& ctx, const Fp8QuantizeArgs& args);
size_t fp8_partial_bytes(Device device, int64_t rows, int64_t cols);

// One of fp8_quantize_weights().
struct Fp8WeightArgs {
  const void* x = nullptr;
  uint8_t* y = nullptr;
  uint8_t* transposed = nullptr;
  Fp8Site* site = nullptr;
  int64_t rows = 0, cols = 0;
};

// fp8_quantize() of many matrices of weights whose scales are known, in E4M3 as they lie and turned: on a GPU
// in one launch, where a launch each takes longer than its work.
//
// Shapes    x and y (rows, cols), transposed (cols, rows); rows and cols multiples of 16.
// Types     x in dtype: f32, bf16 or f16, on the CPU f32; codes in 8 bits.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run.
// Errors    invalid_argument, unsupported, device, as fp8_quantize().
// Cost      four bytes of traffic an element of a 16-bit type.
// Source    as fp8_quantize().
struct Fp8WeightsArgs {
  std::span<const Fp8WeightArgs> matrices = {};
  DType dtype = DType::f32;
};
void fp8_quantize_weights(const Context& ctx, const Fp8WeightsArgs& args);

// The sites of a linear layer, in this order: its input and weights in e4m3, the gradient of its result
// in e5m2.
constexpr int kFp8Roles = 3;
constexpr Fp8Format fp8_format_of(int64_t site) {
  return site % kFp8Roles == 2 ? Fp8Format::e5m2 : Fp8Format::e4m3;
}

// Ends a step: each site's amax, the largest over `ranks`, becomes the newest of its history, and the
// scale is chosen by the largest of that as above. An amax that is not finite is forgotten, and so are
// all of a bad step (kernels/optimizer/optimizer.h); a site that knows nothing even then has scale 1.
// Runs before finish_step().
//
// Shapes    sites (layers, kFp8Roles); gathered (ranks, layers, kFp8Roles), the sites of every rank, or
//           null: these alone.
// Types     Fp8Site, StepState.
// Cost      a launch; some hundred bytes a site.
// Source    as fp8_quantize().
struct Fp8RollArgs {
  Fp8Site* sites = nullptr;
  const Fp8Site* gathered = nullptr;
  int64_t count = 0, ranks = 1;
  float token_budget = 1.0f;
  const StepState* state = nullptr;
};
void fp8_roll(const Context& ctx, const Fp8RollArgs& args);

// d = a_site^-1 b_site^-1 sum_k a[m][k] b[n][k] + bias[n] (+ c[m][n])
//
// Shapes    a (m, k), b (n, k), c and d (m, n), all dense; bias (n); c and bias may be null. n and k
//           multiples of 16. scratch: fp8_matmul_scratch_bytes().
// Types     a in a_format, b in e4m3; c, d and bias in dtype: f32; bf16 on GPUs, where f32 has no bias. Sums in f32;
//           `fast`: on a GPU those of 128 and more terms in the 14 bits that its tensor cores keep.
// Cost      2 m n k flops; on the CPU codes are decoded and multiplied in f32.
// Source    Micikevicius et al., arXiv:2209.05433; on GPUs cuBLASLt (compute capability 8.9 and newer).
struct Fp8MatmulArgs {
  const uint8_t* a = nullptr;
  const uint8_t* b = nullptr;
  const Fp8Site* a_site = nullptr;
  const Fp8Site* b_site = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  void* scratch = nullptr;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f32;
  Fp8Format a_format = Fp8Format::e4m3;
  bool fast = false;
};
void fp8_matmul(const Context& ctx, const Fp8MatmulArgs& args);
size_t fp8_matmul_scratch_bytes(Device device, int64_t m, int64_t n, int64_t k);

// Why a device has no products of this kind; null where it has them. The CPU has them emulated.
const char* fp8_refusal(Device device);

}  // namespace saturate::kernels
