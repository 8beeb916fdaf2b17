// SPDX-License-Identifier: Apache-2.0
// How fast and in how much memory a long capture is analysed. Writes a synthetic capture of an hour
// (or --seconds) of a training loop, then reads it back.
//   saturate_analyser_bench [--seconds 3600] [--file /tmp/bench.sat] [--keep]
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "observe/read/sat_writer.h"
#include "observe/report/diagnosis.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// 130 launches in steps of 20 ms, as of a small eager model; flushed every second.
int64_t write_capture(const std::string& path, int64_t seconds) {
  SatWriter writer(path);
  Trace t;
  t.framework = "PyTorch";
  t.devices[0] = {"synthetic", 132};
  const uint32_t thread = t.threads.add({1, 1}), stream = t.streams.add({1, 0, 1, 7}),
                 launch = t.names.add("cudaLaunchKernel"),
                 copy_call = t.names.add("cudaMemcpyAsync"),
                 copy = t.names.add("Memcpy HtoD (Pinned -> Device)"),
                 data = t.names.add("enumerate(DataLoader)"),
                 wait = t.names.add("cudaDeviceSynchronize");
  uint32_t kernels[8];
  for (uint32_t i = 0; i < 8; ++i)
    kernels[i] = t.names.add(fmt::format("sm90_gemm_bf16bf16_{}", i));
  int64_t host = 0, device = 0, correlation = 0, records = 0;
  for (int64_t second = 1; second <= seconds; ++second) {
    t.ops.clear();
    t.calls.clear();
    t.spans.clear();
    while (host < second * 1'000'000'000) {
      t.spans.push_back({host, host + 4'000'000, data, thread, SpanKind::loader});
      host += 4'000'000;
      for (int i = 0; i < 130; ++i) {
        host += 8'000;
        t.calls.push_back({host, host + 4'000, ++correlation, i == 0 ? copy_call : launch, thread});
        host += 4'000;
        DeviceOp op;
        op.start_ns = std::max(host + 2'000, device + 1'000);
        op.end_ns = device = op.start_ns + 60'000;
        op.correlation = correlation;
        op.size = 512;
        op.name = i == 0 ? copy : kernels[i * 7 % 8];
        op.stream = stream;
        op.kind = i == 0 ? OpKind::copy : OpKind::kernel;
        op.copy = i == 0 ? CopyKind::host_to_device : CopyKind::unknown;
        t.ops.push_back(op);
      }
      const int64_t done = std::max(host + 2'000, device + 5'000);
      t.calls.push_back({host, done, ++correlation, wait, thread});
      host = done;
    }
    records += static_cast<int64_t>(t.records());
    writer.write(t, host);
  }
  writer.close(t);
  return records;
}

int run(int argc, char** argv) {
  int64_t seconds = 3600;
  std::string path = "/tmp/saturate_bench.sat";
  bool keep = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
      seconds = std::atoll(argv[++i]);
    else if (std::strcmp(argv[i], "--file") == 0 && i + 1 < argc)
      path = argv[++i];
    else if (std::strcmp(argv[i], "--keep") == 0)
      keep = true;
  }
  const int64_t records = write_capture(path, seconds);
  const double before = peak_mib();
  const auto start = std::chrono::steady_clock::now();
  const Diagnosis g = diagnose(path);
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(
      "{} s captured, {} records, {} MiB: {:.2f} s, {:.2f} s for 10 million; peak {:.0f} MiB "
      "(writer: {:.0f})\n{}\n",
      seconds, records, std::filesystem::file_size(path) >> 20, elapsed,
      elapsed * 1e7 / static_cast<double>(records), peak_mib(), before,
      render_text(g).substr(0, 700));
  if (!keep) std::filesystem::remove(path);
  return 0;
}

}  // namespace
}  // namespace saturate::observe

int main(int argc, char** argv) { return saturate::observe::run(argc, argv); }
