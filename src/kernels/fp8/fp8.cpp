// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/fp8.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/fp8/fp8_impl.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit fits_gpu(int major, int minor) noexcept {
  if (major > 8 || (major == 8 && minor >= 9)) return {};
  return {"8-bit products need compute capability 8.9 (Ada, Hopper) or newer"};
}

Fit fits_quantize(const Context& ctx, const Fp8QuantizeArgs& args) noexcept {
  if (ctx.device.is_cuda()) return fits_cuda(args.dtype);
  return args.dtype == DType::f32 ? Fit{} : Fit{"on the CPU 8-bit operands are rounded from f32"};
}

Fit fits_weights(const Context& ctx, const Fp8WeightsArgs& args) noexcept {
  return fits_quantize(ctx, {.dtype = args.dtype});
}

Fit fits_roll(const Context&, const Fp8RollArgs&) noexcept { return {}; }

Fit fits_matmul(const Context& ctx, const Fp8MatmulArgs& args) noexcept {
  if (ctx.device.is_cuda()) {
    if (args.dtype != DType::bf16 && args.dtype != DType::f32)
      return {"on GPUs 8-bit products have results in bf16 or f32"};
    if (args.dtype == DType::f32 && args.bias != nullptr)
      return {"on GPUs 8-bit products with results in f32 add no bias"};
    const Capability& gpu = capability_of(ctx);
    return fits_gpu(gpu.major, gpu.minor);
  }
  return args.dtype == DType::f32 ? Fit{} : Fit{"on the CPU 8-bit products have results in f32"};
}

// clang-format off
constexpr Impl<Fp8QuantizeArgs> kQuantize[] = {
    SAT_CUDA_IMPL({"fp8_quantize_cuda", DeviceKind::cuda, fits_quantize, fp8_quantize_cuda})
    {"fp8_quantize_cpu", DeviceKind::cpu, fits_quantize, fp8_quantize_cpu},
};
constexpr Impl<Fp8WeightsArgs> kWeights[] = {
    SAT_CUDA_IMPL({"fp8_quantize_weights_cuda", DeviceKind::cuda, fits_weights, fp8_quantize_weights_cuda})
    {"fp8_quantize_weights_cpu", DeviceKind::cpu, fits_weights, fp8_quantize_weights_cpu},
};
constexpr Impl<Fp8RollArgs> kRoll[] = {
    SAT_CUDA_IMPL({"fp8_roll_cuda", DeviceKind::cuda, fits_roll, fp8_roll_cuda})
    {"fp8_roll_cpu", DeviceKind::cpu, fits_roll, fp8_roll_cpu},
};
constexpr Impl<Fp8MatmulArgs> kMatmul[] = {
    SAT_CUDA_IMPL({"fp8_matmul_cuda", DeviceKind::cuda, fits_matmul, fp8_matmul_cuda})
    {"fp8_matmul_cpu", DeviceKind::cpu, fits_matmul, fp8_matmul_cpu},
};
// clang-format on

void require_sixteen(const char* op, const char* name, int64_t size) {
  if (size % 16 == 0) return;
  throw Error(Errc::invalid_argument, op,
              fmt::format("{} is {}; it must be a multiple of 16", name, size));
}

}  // namespace

template <>
std::span<const Impl<Fp8QuantizeArgs>> impls_of() noexcept {
  return kQuantize;
}

template <>
std::span<const Impl<Fp8WeightsArgs>> impls_of() noexcept {
  return kWeights;
}

template <>
std::span<const Impl<Fp8MatmulArgs>> impls_of() noexcept {
  return kMatmul;
}

const char* fp8_refusal(Device device) {
  if (!device.is_cuda()) return nullptr;
  const DeviceInfo info = device_info(device);
  return fits_gpu(info.compute_major, info.compute_minor).reason;
}

void fp8_quantize(const Context& ctx, const Fp8QuantizeArgs& args) {
  constexpr const char* kOp = "fp8_quantize";
  require_sizes(kOp, {{"rows", args.rows}, {"cols", args.cols}});
  require_sixteen(kOp, "cols", args.cols);
  if (args.transposed != nullptr) require_sixteen(kOp, "rows", args.rows);
  if (args.rows * args.cols == 0) return;
  require_pointers(kOp, {{"x", args.x}, {"site", args.site}});
  if (args.prepare == Fp8Prepare::slope) require_pointers(kOp, {{"given", args.given}});
  if (args.column_sum != nullptr && ctx.device.is_cuda())
    require_pointers(kOp, {{"partial", args.partial}});
  dispatch(kOp, ctx, args, std::span<const Impl<Fp8QuantizeArgs>>(kQuantize), [&] {
    return shape_text(args.dtype, {args.rows, args.cols});
  });
}

void fp8_quantize_weights(const Context& ctx, const Fp8WeightsArgs& args) {
  constexpr const char* kOp = "fp8_quantize_weights";
  for (const Fp8WeightArgs& m : args.matrices) {
    require_sizes(kOp, {{"rows", m.rows}, {"cols", m.cols}});
    require_sixteen(kOp, "rows", m.rows);
    require_sixteen(kOp, "cols", m.cols);
    require_pointers(kOp, {{"x", m.x}, {"y", m.y}, {"transposed", m.transposed}, {"site", m.site}});
  }
  if (args.matrices.empty()) return;
  dispatch(kOp, ctx, args, std::span<const Impl<Fp8WeightsArgs>>(kWeights),
           [&] { return shape_text(args.dtype, {static_cast<int64_t>(args.matrices.size())}); });
}

// The sums of every 128 rows.
size_t fp8_partial_bytes(Device device, int64_t rows, int64_t cols) {
  return device.is_cuda() ? static_cast<size_t>((rows + 127) / 128 * cols) * sizeof(float) : 0;
}

void fp8_roll(const Context& ctx, const Fp8RollArgs& args) {
  constexpr const char* kOp = "fp8_roll";
  require_sizes(kOp, {{"count", args.count}});
  if (args.count == 0) return;
  require_pointers(kOp, {{"sites", args.sites}, {"state", args.state}});
  if (args.ranks < 1 || (args.ranks > 1 && args.gathered == nullptr)) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("ranks is {} and gathered {}; sites of several ranks are gathered",
                            args.ranks, args.gathered == nullptr ? "null" : "given"));
  }
  dispatch(kOp, ctx, args, std::span<const Impl<Fp8RollArgs>>(kRoll), [&] {
    return shape_text(DType::f32, {args.count, args.ranks});
  });
}

void fp8_matmul(const Context& ctx, const Fp8MatmulArgs& args) {
  constexpr const char* kOp = "fp8_matmul";
  require_sizes(kOp, {{"m", args.m}, {"n", args.n}, {"k", args.k}});
  require_sixteen(kOp, "n", args.n);
  require_sixteen(kOp, "k", args.k);
  if (args.m * args.n * args.k == 0) {
    if (args.m * args.n == 0) return;
    throw Error(Errc::invalid_argument, kOp, "k is 0; a sum of no terms needs no product");
  }
  require_pointers(kOp, {{"a", args.a},
                         {"b", args.b},
                         {"a_site", args.a_site},
                         {"b_site", args.b_site},
                         {"d", args.d}});
  if (fp8_matmul_scratch_bytes(ctx.device, args.m, args.n, args.k) > 0)
    require_pointers(kOp, {{"scratch", args.scratch}});
  dispatch(kOp, ctx, args, std::span<const Impl<Fp8MatmulArgs>>(kMatmul), [&] {
    return shape_text(args.dtype, {args.m, args.n, args.k});
  });
}

size_t fp8_matmul_scratch_bytes(Device device, int64_t m, int64_t n, int64_t k) {
  return device.is_cuda() ? 0 : static_cast<size_t>((m + n) * k) * sizeof(float);
}

}  // namespace saturate::kernels
