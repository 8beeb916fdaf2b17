// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/bench_against.h"
#include "apps/commands.h"
#include "apps/report_output.h"
#include "base/error.h"
#include "kernels/gemm/matmul_plan.h"
#include "observe/system/gpu.h"
#include "parallel/launch.h"
#include "plan/automatic.h"
#include "runtime/context.h"
#include "runtime/device_uuid.h"
#include "runtime/memory.h"
#include "train/model_setup.h"
#include "train/step_timing.h"
#include "train/throughput.h"
#include "train/tuned_tables.h"

namespace saturate::apps {
namespace {

using Clock = std::chrono::steady_clock;

using train::random_buffer;

// Median time of `body` in milliseconds; each launch is timed alone after a warm-up.
double median_ms(const Stream& stream, int64_t repeats, const std::function<void()>& body) {
  for (int i = 0; i < 3; ++i) body();
  stream.synchronize();
  std::vector<double> times;
  Event begin(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  for (int64_t i = 0; i < repeats; ++i) {
    const Clock::time_point host = Clock::now();
    begin.record(stream);
    body();
    end.record(stream);
    stream.synchronize();
    times.push_back(stream.device().is_cuda()
                        ? Event::elapsed_ms(begin, end)
                        : std::chrono::duration<double, std::milli>(Clock::now() - host).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

void bench_gemm(const BenchOptions& o, const kernels::KernelOptions& options, const Context& ctx,
                const Stream& stream, DType type) {
  if (o.shape.size() != 3) {
    throw Error(Errc::invalid_argument, "bench",
                "gemm takes --shape M N K, for example --shape 4096 4096 4096");
  }
  const int64_t m = o.shape[0], n = o.shape[1], k = o.shape[2];
  if (m < 1 || n < 1 || k < 1)
    throw Error(Errc::invalid_argument, "bench", "gemm: M, N and K start at 1");
  const Buffer a = random_buffer(ctx, stream, m * k, type, 1),
               b = random_buffer(ctx, stream, n * k, type, 2);
  const Buffer d(ctx.device, static_cast<size_t>(m * n) * size_of(type));
  const kernels::MatmulArgs args{.a = a.data(),
                                 .b = b.data(),
                                 .d = d.data(),
                                 .m = m,
                                 .n = n,
                                 .k = k,
                                 .lda = k,
                                 .ldb = k,
                                 .ldc = n,
                                 .ldd = n,
                                 .tb = kernels::Transpose::yes,
                                 .ab_type = type,
                                 .d_type = type,
                                 .allow_tf32 = options.allow_tf32};
  // As much workspace as the product has a use for, not what all benchmarks share.
  Context own = ctx;
  own.workspace_bytes = kernels::matmul_workspace_limit(ctx.device, args);
  const kernels::MatmulPlan plan = kernels::plan_matmul(own, options, args);
  const Buffer workspace(ctx.device, plan.workspace_bytes);
  own.workspace = workspace.data();
  own.workspace_bytes = workspace.bytes();
  const double ms = median_ms(stream, o.repeats, [&] { plan.run(own, args); });
  const std::string row = fmt::format(
      R"({{"what":"gemm","m":{},"n":{},"k":{},"type":"{}","ms":{:.4f},"tflops":{:.2f}}})", m, n, k,
      name_of(type), ms, 2e-9 * static_cast<double>(m) * static_cast<double>(n * k) / ms);
  fmt::print("{}\n", complete_row(row, device_info(ctx.device).name, o.arguments));
}

// By NVML's counter of the GPU; null on the CPU and where no driver counts.
train::EnergyCounter energy_counter(Device device) {
  if (!device.is_cuda()) return {};
  std::string why;
  const std::shared_ptr<observe::GpuMonitor> monitor = observe::GpuMonitor::open(why);
  if (!monitor) return {};
  const std::string uuid = device_uuid(device);
  for (const observe::GpuInfo& gpu : monitor->gpus())
    if (gpu.uuid == uuid) return [monitor, index = gpu.index] { return monitor->energy_j(index); };
  return {};
}

}  // namespace

int run_bench(const BenchOptions& o) {
  if (!o.against.empty()) return run_bench_against(o);
  if (o.what.empty())
    throw Error(Errc::invalid_argument, "bench",
                "give what to measure: step, gemm, attention or links");
  if (o.ladder && !o.plot.empty()) check_report_path("bench", o.plot);
  if (o.what == "links") return run_bench_links(o);
  if (o.what == "step" && o.operations) return run_bench_operations(o);
  if (o.what == "step" && o.roofline) return run_bench_roofline(o);
  if (o.what == "step") {
    const train::StepTiming timing = train::time_step(
        o.config,
        {.length = o.length, .repeats = o.repeats, .skew = o.skew, .energy = energy_counter},
        [&](RunConfig& c, parallel::Communicator& ranks, Device device) {
          plan::take_best_layout(c, o.length, ranks, parallel::current_launch().local_size, device);
        });
    if (parallel::current_launch().rank == 0)
      fmt::print("{}\n", complete_row(train::to_json(timing), timing.device, o.arguments));
    return 0;
  }
  const Device device = parse_device(o.config.train.device);
  use_device(device);
  const kernels::KernelOptions options =
      o.ladder ? kernels::KernelOptions{} : train::kernel_options(o.config, device);
  const DType type = train::resolve_precision(o.config.train.precision, device);
  const Stream stream(device);
  const Buffer workspace(device, device.is_cuda() ? kWorkspaceBytes : 0);
  const Context ctx{device, stream.native(), workspace.data(), workspace.bytes()};
  if (o.ladder && o.what == "attention") return run_bench_attention_ladder(o, ctx, stream);
  if (o.ladder) return run_bench_ladder(o, ctx, stream);
  if (o.what == "gemm") {
    bench_gemm(o, options, ctx, stream, type);
  } else {
    run_bench_attention(o, options, ctx, stream, type);
  }
  return 0;
}

}  // namespace saturate::apps
