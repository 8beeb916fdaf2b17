// SPDX-License-Identifier: Apache-2.0
#include "train/throughput.h"

#include <algorithm>
#include <vector>

#include "base/philox.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/matmul.h"
#include "runtime/context.h"
#include "runtime/memory.h"

namespace saturate::train {

double matmul_ceiling(Device device, DType dtype) {
  const int64_t n = device.is_cuda() ? 4096 : 768;
  const auto elements = static_cast<size_t>(n * n);
  const Stream stream(device);
  Buffer workspace(device, device.is_cuda() ? kWorkspaceBytes : 0);
  const Context ctx{device, stream.native(), workspace.data(), workspace.bytes()};
  std::vector<float> random(elements);
  for (size_t i = 0; i < elements; ++i) {  // zeros would run faster than real data
    random[i] = static_cast<float>(philox4x32(1, i, 0).x[0]) * 0x1p-31f - 1.0f;
  }
  Buffer wide(device, elements * sizeof(float)), a(device, elements * sizeof(float)),
      c(device, elements * sizeof(float));
  copy_to_device(stream, wide.data(), random.data(), wide.bytes());
  kernels::cast(
      ctx,
      {.x = wide.data(), .y = a.data(), .count = n * n, .x_type = DType::f32, .y_type = dtype});
  const kernels::MatmulArgs args{.a = a.data(),
                                 .b = a.data(),
                                 .d = c.data(),
                                 .m = n,
                                 .n = n,
                                 .k = n,
                                 .lda = n,
                                 .ldb = n,
                                 .ldc = n,
                                 .ldd = n,
                                 .ab_type = dtype,
                                 .d_type = dtype};
  kernels::matmul(ctx, args);
  stream.synchronize();
  const int repeats = device.is_cuda() ? 20 : 2;
  double best = 0;
  for (int trial = 0; trial < 3; ++trial) {
    const auto begin = Throughput::Clock::now();
    for (int i = 0; i < repeats; ++i) kernels::matmul(ctx, args);
    stream.synchronize();
    const double s = std::chrono::duration<double>(Throughput::Clock::now() - begin).count();
    best = std::max(best, 2.0 * static_cast<double>(n * n * n) * repeats / s);
  }
  return best;
}

}  // namespace saturate::train
