// SPDX-License-Identifier: Apache-2.0
// Which convolutions the implicit products take, and how the weight gradient is split.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/conv/conv2d_gemm.h"
#include "kernels/conv/conv2d_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// About two blocks a multiprocessor, as far as the workspace reaches; a split sums at least 256
// pixels.
conv::Split split_for(const Context& ctx, const Conv2dArgs& x) {
  const int64_t columns = x.filter_height * x.filter_width * ceil_div(x.channels, 8) * 8;
  const int64_t bytes = x.filters * columns * static_cast<int64_t>(sizeof(float));
  const int64_t tiles = ceil_div(x.filters, 64) * ceil_div(columns, 64);
  const int64_t pixels = x.batch * x.output_height() * x.output_width();
  const int64_t wanted = std::min({2 * capability_of(ctx).multiprocessors / tiles, pixels / 256,
                                   static_cast<int64_t>(ctx.workspace_bytes) / bytes, int64_t{64}});
  const int64_t depth = ceil_div(ceil_div(pixels, std::max<int64_t>(wanted, 1)), 32) * 32;
  const int64_t count = ceil_div(pixels, depth);
  return {static_cast<int>(count), static_cast<int>(depth), static_cast<size_t>(bytes * count)};
}

template <class Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::f16) return body(__half{});
  if (dtype == DType::bf16) return body(__nv_bfloat16{});
  body(float{});
}

}  // namespace

Fit conv2d_forward_cuda_fits(const Context& ctx, const Conv2dArgs& x) noexcept {
  if (x.dtype == DType::f64) return {"dtype is f64, which only the CPU computes"};
  const auto [major, minor] = std::pair{capability_of(ctx).major, capability_of(ctx).minor};
  if (x.dtype == DType::bf16 && major < 8) return {"bf16 needs compute capability 8.0"};
  if (x.dtype == DType::f16 && (major < 7 || (major == 7 && minor < 5)))
    return {"f16 needs compute capability 7.5"};
  // Positions are 32-bit: pixels, taps * channels, taps * filters and coordinates in the padding.
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max() / 4;
  const int64_t taps = x.filter_height * x.filter_width;
  const int64_t pixels =
      x.batch * std::max(x.height * x.width, x.output_height() * x.output_width());
  const int64_t depth = taps * (std::max(x.channels, x.filters) + 7);
  const int64_t reach =
      std::max(x.height + 2 * x.vertical.padding, x.width + 2 * x.horizontal.padding);
  if (pixels > kLargest || depth > kLargest || reach > kLargest)
    return {"pixels, taps times channels, or a padded side is above 2^29 (32-bit positions)"};
  if (depth > int64_t{65535} * 64)
    return {"taps times channels is above 65535 tiles (second grid dimension)"};
  return {};
}

Fit conv2d_backward_cuda_fits(const Context& ctx, const Conv2dBackwardArgs& b) noexcept {
  const Fit fit = conv2d_forward_cuda_fits(ctx, b.forward);
  if (!fit) return fit;
  if (b.d_w != nullptr && split_for(ctx, b.forward).workspace_bytes > ctx.workspace_bytes)
    return {"the workspace is smaller than the weight gradient in fp32"};
  return {};
}

void conv2d_forward_cuda(const Context& ctx, const Conv2dArgs& x) {
  with_type(x.dtype, [&](auto type) { conv::forward<decltype(type)>(ctx, x); });
}

void conv2d_backward_cuda(const Context& ctx, const Conv2dBackwardArgs& b) {
  with_type(b.forward.dtype, [&](auto type) {
    using T = decltype(type);
    if (b.d_x != nullptr) conv::input_gradient<T>(ctx, b);
    if (b.d_w == nullptr) return;
    const conv::Split split = split_for(ctx, b.forward);
    conv::weight_gradient<T>(ctx, b, split);
    conv::join_weight_gradient(ctx, b, split);
  });
}

}  // namespace saturate::kernels
