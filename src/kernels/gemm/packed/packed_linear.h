// SPDX-License-Identifier: Apache-2.0
// Linear layers on the CPU whose weights are laid out once, when a model is loaded for inference.
#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/activation/activation.h"
#include "kernels/dispatch.h"
#include "kernels/options.h"
#include "runtime/memory.h"

namespace saturate::kernels {

enum class PackedType : uint8_t { f32, s8, bf16 };

// Packed weights where they lie; PackedWeights owns them.
struct PackedView {
  PackedType type = PackedType::f32;
  int64_t n = 0, k = 0;  // outputs, inputs
  // Panels of 16 outputs: by k for f32, k / 2 for bf16, k / 4 for s8, 64 bytes each. Past n and k lie
  // zeros.
  const char* panels = nullptr;
  const float* scales = nullptr;     // s8: of each output, to whole panels
  const int32_t* offsets = nullptr;  // s8: 128 times the sum of each output's weights
};

/// Memory that the panels of many matrices share, in large pages where the system has them: fewer faults
/// while a model is read, fewer misses while it runs. Any thread; what is taken is given back together.
class PanelMemory {
 public:
  // At least `bytes`, aligned to a line of 64; values as they come. Errors: out_of_memory.
  char* take(size_t bytes);

 private:
  std::mutex mutex_;
  std::vector<Buffer> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0;
};

/// Weights (n, k) of a linear layer as packed_linear() reads them. f32: their values. s8: q = w /
/// scale, scale = the largest |w| of an output / 127, rounded to the nearest, ties to even; so what
/// was rounded so before keeps its q. bf16: to the nearest, ties to even, and zero below the least normal
/// number. Immutable; any thread may read.
class PackedWeights {
 public:
  PackedWeights() = default;
  // Rows [first, first + count) as floats, row-major: in `room`, which holds as many, or where they
  // lie. From several threads; count is at most kRowsAtOnce.
  using Rows = std::function<const float*(int64_t first, int64_t count, float* room)>;
  static constexpr int64_t kRowsAtOnce = 16;
  // All finite. Threads share the rows. They lie in `memory`, which lives longer, or where there is
  // none in their own. Errors: invalid_argument for sizes below 1; out_of_memory; those of `rows`.
  PackedWeights(PackedType type, int64_t n, int64_t k, const Rows& rows,
                PanelMemory* memory = nullptr);
  // w row-major, k elements a row.
  PackedWeights(PackedType type, const float* w, int64_t n, int64_t k,
                PanelMemory* memory = nullptr);
  // Of `bytes_of` bytes at `data`, aligned to a line of 64, as another one's view().panels had them; they are not copied and
  // live longer.
  PackedWeights(PackedType type, int64_t n, int64_t k, const char* data);
  // What panels and, of s8, scales and offsets take, one behind the other from view().panels on.
  static size_t bytes_of(PackedType type, int64_t n, int64_t k) noexcept;
  // Of the way they lie: what is kept of others must not be read as these.
  static constexpr int kLayout = 1;
  const PackedView& view() const noexcept { return view_; }
  size_t bytes() const noexcept { return bytes_; }

 private:
  PackedView view_;
  size_t bytes_ = 0;
  Buffer memory_;
};

/// Rows of w as floats: out[t] = row ids[t], as packing rounded it; of s8 its q times its scale. An id outside [0, n) gives
/// zeros. Shapes: ids (rows), out (rows, w.k). The CPU's stream: done at return. Reads rows * k elements.
void unpack_rows(const PackedView& w, const int32_t* ids, int64_t rows, float* out);

// The newest instruction set of this processor that packed_linear() has kernels for. Each has those
// before it.
CpuLevel cpu_level() noexcept;

// y = f(x w^T + bias)
//
// s8: x is rounded too, row by row: q = x / scale, scale = the row's largest |x| / 127. Products of
// q are summed exactly (i32), then y = f(sum * (row scale * output scale) + bias). A row that holds
// an infinity or what is no number gives what is no number.
// bf16: x is rounded as the weights are; products, which f32 holds, are summed in f32, where what is below
// the least normal number is zero (in bias and activation too; not on processors other than x86-64).
//
// Shapes    x (rows, k), row stride ldx; y (rows, n), row stride ldy; bias (n) or null.
// Types     x, y, bias f32; w f32, bf16 or s8.
// Rows      with a list of them the others of x are not read and those of y left as they are (AMX
//           computes all the same).
// Aliasing  none.
// Stream    the CPU's: done at return.
// Order     bitwise equal for every number of rows and threads and every instruction set: an element
//           of y is one chain of fused multiply-adds over ascending k (f32, bf16) or exact (s8). Of
//           bf16 AMX alone has another order, its own: odd and even k of 32 apart, then both.
// Errors    invalid_argument for sizes and pointers; unsupported where no implementation fits.
// Cost      2 rows n k flops; s8 and bf16 also one pass over x. The weights are read once for every six rows,
//           from the second-level cache if 2 KiB * k fit there.
// Source    Goto and van de Geijn, ACM TOMS 34 (2008), with the operand packed that never changes;
//           s8 as Jacob et al., arXiv:1712.05877, without zero points; measured in LADDER.md.
struct PackedLinearArgs {
  const float* x = nullptr;
  PackedView w;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t rows = 0, ldx = 0, ldy = 0;
  std::optional<ActivationKind> activation = {};
  CpuLevel level = CpuLevel::avx2;  // the newest that may run: cpu_level() or older
  const int32_t* listed = nullptr;  // how many rows are wanted, then these, ascending; null: all
};

// Chooses what runs; s8 and bf16 say in workspace_bytes what the context has to bring. Of the pointers none
// is followed.
Plan<PackedLinearArgs> plan_packed_linear(const Context& ctx, const PackedLinearArgs& args);

// As the plan says, for a caller that has no plan and no workspace.
void packed_linear(const Context& ctx, const PackedLinearArgs& args);

}  // namespace saturate::kernels
