// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_scaled/block_scaled.h"

#include <fmt/format.h>

#include "kernels/block_scaled/block_scaled_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

bool is_mxfp8(BlockFormat f) { return block_code_bits(f) == 8; }

Fit fits_gpu(int major) noexcept {
  if (major >= 10) return {};
  return {"block-scaled products need compute capability 10.0 (Blackwell) or newer"};
}

Fit fits_quantize(const Context& ctx, const BlockQuantizeArgs& args) noexcept {
  if (ctx.device.is_cuda()) return fits_cuda(args.dtype);
  return args.dtype == DType::f32 ? Fit{} : Fit{"on the CPU blocks are rounded from f32"};
}

Fit fits_matmul(const Context& ctx, const BlockMatmulArgs& args) noexcept {
  if (!ctx.device.is_cuda())
    return args.dtype == DType::f32 ? Fit{}
                                    : Fit{"on the CPU block-scaled products have results in f32"};
  if (args.dtype != DType::bf16) return {"on GPUs block-scaled products have results in bf16"};
  if (args.a.format == BlockFormat::mxfp4)
    return {"cuBLASLt multiplies 4-bit codes in blocks of 16 alone (nvfp4)"};
  if (args.a.format == BlockFormat::mxfp8_e5m2 && args.b.format == BlockFormat::mxfp8_e5m2)
    return {"cuBLASLt does not multiply e5m2 with e5m2"};
  if (args.a.format == BlockFormat::nvfp4 && args.k % 32 != 0)
    return {"k is no multiple of 32 (rows of 4-bit codes begin at multiples of 16 bytes)"};
  return fits_gpu(capability_of(ctx).major);
}

// clang-format off
constexpr Impl<BlockQuantizeArgs> kQuantize[] = {
    SAT_CUDA_IMPL({"block_quantize_cuda", DeviceKind::cuda, fits_quantize, block_quantize_cuda})
    {"block_quantize_cpu", DeviceKind::cpu, fits_quantize, block_quantize_cpu},
};
constexpr Impl<BlockMatmulArgs> kMatmul[] = {
    SAT_CUDA_IMPL({"block_matmul_cuda", DeviceKind::cuda, fits_matmul, block_matmul_cuda})
    {"block_matmul_cpu", DeviceKind::cpu, fits_matmul, block_matmul_cpu},
};
// clang-format on

void require_sixteen(const char* op, const char* name, int64_t size) {
  if (size % 16 == 0) return;
  throw Error(Errc::invalid_argument, op,
              fmt::format("{} is {}; it must be a multiple of 16", name, size));
}

}  // namespace

template <>
std::span<const Impl<BlockQuantizeArgs>> impls_of() noexcept {
  return kQuantize;
}

template <>
std::span<const Impl<BlockMatmulArgs>> impls_of() noexcept {
  return kMatmul;
}

const char* block_refusal(Device device) {
  return device.is_cuda() ? fits_gpu(device_info(device).compute_major).reason : nullptr;
}

void block_quantize(const Context& ctx, const BlockQuantizeArgs& args) {
  constexpr const char* kOp = "block_quantize";
  require_sizes(kOp, {{"rows", args.rows}, {"cols", args.cols}});
  require_sixteen(kOp, "cols", args.cols);
  if (args.transposed != nullptr) require_sixteen(kOp, "rows", args.rows);
  if (args.rows * args.cols == 0) return;
  require_pointers(kOp, {{"x", args.x}});
  if (args.codes != nullptr) require_pointers(kOp, {{"scales", args.scales}});
  if (args.transposed != nullptr)
    require_pointers(kOp, {{"transposed_scales", args.transposed_scales}});
  if (args.format == BlockFormat::nvfp4) require_pointers(kOp, {{"tensor", args.tensor}});
  dispatch(kOp, ctx, args, std::span<const Impl<BlockQuantizeArgs>>(kQuantize), [&] {
    return shape_text(args.dtype, {args.rows, args.cols});
  });
}

void block_matmul(const Context& ctx, const BlockMatmulArgs& args) {
  constexpr const char* kOp = "block_matmul";
  require_sizes(kOp, {{"m", args.m}, {"n", args.n}, {"k", args.k}});
  require_sixteen(kOp, "n", args.n);
  require_sixteen(kOp, "k", args.k);
  if (args.a.format != args.b.format && !(is_mxfp8(args.a.format) && is_mxfp8(args.b.format)))
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("formats are {} and {}; only e4m3 and e5m2 go together",
                            static_cast<int>(args.a.format), static_cast<int>(args.b.format)));
  if (args.m * args.n * args.k == 0) {
    if (args.m * args.n == 0) return;
    throw Error(Errc::invalid_argument, kOp, "k is 0; a sum of no terms needs no product");
  }
  require_pointers(kOp, {{"a.codes", args.a.codes},
                         {"a.scales", args.a.scales},
                         {"b.codes", args.b.codes},
                         {"b.scales", args.b.scales},
                         {"d", args.d},
                         {"scratch", args.scratch}});
  if (args.a.format == BlockFormat::nvfp4)
    require_pointers(kOp, {{"a.tensor", args.a.tensor}, {"b.tensor", args.b.tensor}});
  dispatch(kOp, ctx, args, std::span<const Impl<BlockMatmulArgs>>(kMatmul), [&] {
    return shape_text(args.dtype, {args.m, args.n, args.k});
  });
}

size_t block_matmul_scratch_bytes(Device device, int64_t m, int64_t n, int64_t k) {
  return device.is_cuda() ? 16 : static_cast<size_t>((m + n) * k) * sizeof(float);
}

}  // namespace saturate::kernels
