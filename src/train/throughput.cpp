// SPDX-License-Identifier: Apache-2.0
#include "train/throughput.h"

#include <algorithm>
#include <vector>

#include "base/philox.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/matmul_plan.h"

namespace saturate::train {

Buffer random_buffer(const Context& ctx, const Stream& stream, int64_t count, DType type,
                     uint64_t key) {
  // A prime, so that no two rows of a matrix begin alike. More would only take the host's time.
  constexpr int64_t kPeriod = 1048573;
  std::vector<float> host(static_cast<size_t>(std::min(count, kPeriod)));
  for (size_t i = 0; i < host.size(); ++i) {
    host[i] = static_cast<float>(philox4x32(key, i, 0).x[0]) * 0x1p-31f - 1.0f;
  }
  const size_t size = size_of(type), bytes = static_cast<size_t>(count) * size;
  Buffer wide(ctx.device, host.size() * sizeof(float));
  Buffer out(ctx.device, bytes);
  copy_to_device(stream, wide.data(), host.data(), wide.bytes());
  kernels::cast(ctx, {.x = wide.data(),
                      .y = out.data(),
                      .count = std::ssize(host),
                      .x_type = DType::f32,
                      .y_type = type});
  for (size_t filled = host.size() * size; filled < bytes; filled *= 2)
    copy_on_device(stream, out.as<std::byte>() + filled, out.data(),
                   std::min(filled, bytes - filled));
  stream.synchronize();
  return out;
}

double matmul_ceiling(Device device, DType dtype, const kernels::KernelOptions& options) {
  const int64_t n = device.is_cuda() ? 4096 : 768;
  const Stream stream(device);
  Buffer workspace(device, kernels::matmul_workspace_bytes(device, dtype));
  const Context ctx{device, stream.native(), workspace.data(), workspace.bytes()};
  const Buffer a = random_buffer(ctx, stream, n * n, dtype, 1),
               c(device, static_cast<size_t>(n * n) * size_of(dtype));
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
                                 .d_type = dtype,
                                 .allow_bf16 = options.allow_bf16};
  const kernels::MatmulPlan plan = kernels::plan_matmul(ctx, options, args);
  plan.run(ctx, args);
  stream.synchronize();
  const int repeats = device.is_cuda() ? 20 : 2;
  double best = 0;
  for (int trial = 0; trial < 3; ++trial) {
    const auto begin = Throughput::Clock::now();
    for (int i = 0; i < repeats; ++i) plan.run(ctx, args);
    stream.synchronize();
    const double s = std::chrono::duration<double>(Throughput::Clock::now() - begin).count();
    best = std::max(best, 2.0 * static_cast<double>(n * n * n) * repeats / s);
  }
  return best;
}

}  // namespace saturate::train
