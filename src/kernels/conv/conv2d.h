// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

struct Conv2dAxis {
  int64_t stride = 1;
  int64_t padding = 0;  // zeros before the first and after the last
  int64_t dilation = 1;
};

// y[b][p][q][f] = bias[f] + sum over r, s, c of
//     x[b][p * stride - padding + r * dilation][q ... s ...][c] * w[f][r][s][c]
//
// Shapes    x (batch, height, width, channels), w (filters, filter_height, filter_width, channels),
//           y (batch, P, Q, filters), all dense; P and Q are output_height() and output_width().
//           bias (filters), or null. Cross-correlation, as in other frameworks; one group.
// Types     dtype throughout; sums in fp32 (f64 for f64).
// Aliasing  none.
// Stream    enqueued on ctx.stream; uses ctx.workspace; never synchronises.
// Order     bitwise equal run to run: the weight gradient joins its splits in a fixed order.
// Errors    invalid_argument for shapes; unsupported when no implementation fits; device.
// Cost      2 batch P Q filters filter_height filter_width channels flops, each of the three.
// Source    Chetlur et al., arXiv:1410.0759: a matrix product that gathers x as it goes.
struct Conv2dArgs {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  int64_t batch = 0, height = 0, width = 0, channels = 0;
  int64_t filters = 0, filter_height = 1, filter_width = 1;
  Conv2dAxis vertical = {}, horizontal = {};
  DType dtype = DType::f32;

  int64_t output_height() const { return extent(height, filter_height, vertical); }
  int64_t output_width() const { return extent(width, filter_width, horizontal); }

 private:
  static int64_t extent(int64_t size, int64_t filter, const Conv2dAxis& a) {
    const int64_t room = size + 2 * a.padding - a.dilation * (filter - 1) - 1;
    return room < 0 ? 0 : room / a.stride + 1;
  }
};

// d_x, d_w from d_y and the forward's x and w; a null one is not computed. y and bias of `forward`
// are not read. The bias gradient is the column sum of d_y (elementwise.h).
struct Conv2dBackwardArgs {
  Conv2dArgs forward;
  const void* d_y = nullptr;
  void* d_x = nullptr;
  void* d_w = nullptr;
};

void conv2d_forward(const Context& ctx, const Conv2dArgs& args);
void conv2d_backward(const Context& ctx, const Conv2dBackwardArgs& args);

}  // namespace saturate::kernels
