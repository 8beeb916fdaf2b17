// SPDX-License-Identifier: Apache-2.0
#include "kernels/compression/compression.h"

#include <fmt/format.h>

#include "kernels/compression/compression_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

template <class Args>
Fit typed_fits_cpu(const Context&, const Args& a) noexcept {
  return fits_cpu(a.dtype);
}
#if SATURATE_WITH_CUDA
template <class Args>
Fit typed_fits_cuda(const Context&, const Args& a) noexcept {
  if (a.dtype != DType::f32) return {"a GPU makes these sums in f32"};
  return {};
}
#endif

constexpr Impl<CompressArgs> kCompress[] = {SAT_CUDA_IMPL(
    {"compress_cuda", DeviceKind::cuda, typed_fits_cuda<CompressArgs>, compress_cuda}){
    "compress_cpu", DeviceKind::cpu, typed_fits_cpu<CompressArgs>, compress_cpu}};
constexpr Impl<DecompressArgs> kDecompress[] = {SAT_CUDA_IMPL(
    {"decompress_cuda", DeviceKind::cuda, typed_fits_cuda<DecompressArgs>, decompress_cuda}){
    "decompress_cpu", DeviceKind::cpu, typed_fits_cpu<DecompressArgs>, decompress_cpu}};

void require_wide(const char* op, DType dtype) {
  if (dtype == wide_of(dtype)) return;
  throw Error(Errc::invalid_argument, op,
              fmt::format("dtype is {}: sums are made in f32 or f64", name_of(dtype)));
}

}  // namespace

template <>
std::span<const Impl<CompressArgs>> impls_of() noexcept {
  return kCompress;
}
template <>
std::span<const Impl<DecompressArgs>> impls_of() noexcept {
  return kDecompress;
}

void compress(const Context& ctx, const CompressArgs& a) {
  require_wide("compress", a.dtype);
  require_sizes("compress",
                {{"count", a.count}, {"blocks", a.blocks}, {"input_count", a.input_count}});
  if (a.blocks < coded_blocks(a.count)) {
    throw Error(Errc::invalid_argument, "compress",
                fmt::format("{} blocks are given for {} elements, which take {}", a.blocks, a.count,
                            coded_blocks(a.count)));
  }
  if (a.blocks == 0) return;
  require_pointers("compress", {{"y", a.y}});
  if (a.count > 0) require_pointers("compress", {{"x", a.x}, {"residual", a.residual}});
  if (a.input_count > 0) require_pointers("compress", {{"inputs", a.inputs}});
  dispatch<CompressArgs>("compress", ctx, a, kCompress, [&] {
    return shape_text(a.dtype, {a.input_count + 1, a.count});
  });
}

void decompress(const Context& ctx, const DecompressArgs& a) {
  require_wide("decompress", a.dtype);
  require_sizes("decompress", {{"count", a.count}});
  if (a.count == 0) return;
  require_pointers("decompress", {{"x", a.x}, {"y", a.y}});
  dispatch<DecompressArgs>("decompress", ctx, a, kDecompress,
                           [&] { return shape_text(a.dtype, {a.count}); });
}

}  // namespace saturate::kernels
