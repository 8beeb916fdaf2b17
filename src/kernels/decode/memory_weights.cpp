// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/memory_weights.h"

#include <fmt/format.h>

#include "kernels/decode/memory_weights_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit cpu_fits(const Context&, const MemoryWeightsArgs& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit cuda_fits(const Context&, const MemoryWeightsArgs& a) noexcept {
  if (a.max_positions > kMaxWeighted)
    return {"max_positions > 6000 (two numbers each in shared memory)"};
  return fits_cuda(a.dtype, a.rows);
}
#endif

constexpr Impl<MemoryWeightsArgs> kMemoryWeights[] = {
    SAT_CUDA_IMPL({"memory_weights_cuda", DeviceKind::cuda, cuda_fits, memory_weights_cuda}){
        "memory_weights_cpu", DeviceKind::cpu, cpu_fits, memory_weights_cpu}};

}  // namespace

template <>
std::span<const Impl<MemoryWeightsArgs>> impls_of() noexcept {
  return kMemoryWeights;
}

void memory_weights(const Context& ctx, const MemoryWeightsArgs& a) {
  constexpr const char* kOp = "memory_weights";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows}, {"max_positions", a.max_positions}});
  if (a.heads < 1 || a.kv_heads < 1 || a.heads % a.kv_heads != 0 || a.head_size < 1 ||
      a.first_head < 0 || a.head_count < 1 || a.first_head + a.head_count > a.heads) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("heads is {}, kv_heads {}, head_size {}, first_head {}, head_count {}: "
                            "kv_heads must divide heads, and the mean be of one or more of them",
                            a.heads, a.kv_heads, a.head_size, a.first_head, a.head_count));
  }
  if (a.stride < a.max_positions) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("stride is {} and max_positions {}; stride must be at least that",
                            a.stride, a.max_positions));
  }
  if (a.rows == 0) return;
  require_pointers(kOp, {{"q", a.q},
                         {"memory", a.memory},
                         {"w", a.w},
                         {"starts", a.starts},
                         {"lengths", a.lengths},
                         {"finished", a.finished},
                         {"slot_starts", a.slot_starts},
                         {"positions", a.positions}});
  dispatch<MemoryWeightsArgs>(kOp, ctx, a, kMemoryWeights, [&] {
    return shape_text(a.dtype, {a.rows, a.heads, a.kv_heads, a.head_size});
  });
}

}  // namespace saturate::kernels
