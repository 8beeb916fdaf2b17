// SPDX-License-Identifier: Apache-2.0
// How fast a trace of torch.profiler is read and analysed. Writes a synthetic one, laid out as
// Kineto writes them (six events a launch: two operators, call, kernel, two ends of an arrow), then
// reads it back.
//   saturate_kineto_bench [--events 10000000] [--file /tmp/bench.json] [--gzip] [--shapes]
//                         [--device-only] [--keep] [--reuse]
#include <fmt/format.h>
#include <sys/resource.h>
#include <zlib.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "observe/report/diagnosis.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

double cpu_s() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}
double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Options {
  int64_t events = 10'000'000;
  std::string path = "/tmp/saturate_bench.json";
  bool gzip = false, shapes = false, device_only = false, keep = false;
  bool reuse = false;  // a file that --keep left, of the same options
};

class TraceWriter {
 public:
  TraceWriter(const std::string& path, bool gzip)
      : file_(gzopen(path.c_str(), gzip ? "wb6" : "wbT")) {}
  ~TraceWriter() { gzclose(file_); }
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  template <class... T>
  void put(fmt::format_string<T...> text, T&&... values) {
    fmt::format_to(std::back_inserter(buffer_), text, std::forward<T>(values)...);
    if (buffer_.size() > 1 << 20) flush();
  }
  void flush() {
    gzwrite(file_, buffer_.data(), static_cast<unsigned>(buffer_.size()));
    buffer_.clear();
  }

 private:
  gzFile file_;
  fmt::memory_buffer buffer_;
};

// Steps of 130 launches, every kernel 20 us. Returns    the events written.
int64_t write_trace(const Options& o) {
  constexpr const char* kKernels[] = {
      "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute",
      "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
      "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
      "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
      "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
      "at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >"};
  constexpr const char* kOps[] = {"aten::mm", "aten::add_", "aten::mm", "aten::mean"};
  TraceWriter out(o.path, o.gzip);
  out.put(
      "{{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [\n    {{\n      \"id\": 0, \"name\": "
      "\"NVIDIA H200\", \"numSms\": 132\n    }}\n  ],\n  \"traceEvents\": [\n");
  int64_t events = 0, id = 0, host = 1'680'000'000'000'000'000, device = host;
  const auto us = [](int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); };
  while (events < o.events) {
    const int64_t step = host;
    for (int i = 0; i < 130; ++i) {
      const int k = i % 4;
      ++id;
      const int64_t call = host + 7'000, start = std::max(call + 6'000, device + 1'000);
      if (!o.device_only) {
        for (const char* op : {"aten::outer", kOps[k]})
          out.put(
              "  {{\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"{}\", \"pid\": 4242, "
              "\"tid\": 4242,\n    \"ts\": {}, \"dur\": {},\n    \"args\": {{\n      \"External "
              "id\": {},\"Record function id\": 0{}, \"Sequence number\": {}, \"Fwd thread id\": "
              "0, \"Ev Idx\": {}\n    }}\n  }},\n",
              op, us(host), us(14'000), id,
              o.shapes ? ", \"Concrete Inputs\": [\"\", \"\"], \"Input type\": [\"c10::BFloat16\", "
                         "\"c10::BFloat16\"], \"Input Strides\": [[4096, 1], [1, 4096]], \"Input "
                         "Dims\": [[2048, 4096], [4096, 1024]]"
                       : "",
              id, id * 2);
      }
      out.put(
          "  {{\n    \"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"{}\", \"pid\": 0, \"tid\": "
          "7,\n    \"ts\": {}, \"dur\": {},\n    \"args\": {{\n      \"External id\": {},\n      "
          "\"queued\": 0, \"device\": 0, \"context\": 1,\n      \"stream\": 7, \"correlation\": "
          "{},\n      \"registers per thread\": 168,\n      \"shared memory\": 213016,\n      "
          "\"blocks per SM\": 0.969697,\n      \"warps per SM\": 11.636364,\n      \"grid\": [8, "
          "16, 1],\n      \"block\": [384, 1, 1],\n      \"est. achieved occupancy %\": 18\n    "
          "}}\n  }},\n",
          kKernels[k], us(start), us(20'000), id, id);
      device = start + 20'000;
      for (const char end : {'f', 's'})
        out.put(
            "  {{\n    \"ph\": \"{}\", \"id\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {},\n    "
            "\"cat\": \"ac2g\", \"name\": \"ac2g\"{}\n  }},\n",
            end, id, end == 'f' ? 0 : 4242, end == 'f' ? 7 : 4242, us(end == 'f' ? start : call),
            end == 'f' ? ", \"bp\": \"e\"" : "");
      out.put(
          "  {{\n    \"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", "
          "\"pid\": 4242, \"tid\": 4242,\n    \"ts\": {}, \"dur\": {},\n    \"args\": {{\n      "
          "\"External id\": {}, \"cbid\": 211, \"correlation\": {}\n    }}\n  }},\n",
          us(call), us(4'000), id, id);
      host += 18'000;
      events += o.device_only ? 4 : 6;
    }
    out.put(
        "  {{\n    \"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#{}\", "
        "\"pid\": 4242, \"tid\": 4242,\n    \"ts\": {}, \"dur\": {},\n    \"args\": {{\n      "
        "\"External id\": 1\n    }}\n  }},\n",
        events, us(step), us(host - step));
    ++events;
  }
  out.put("  {{\"ph\": \"M\", \"name\": \"end\", \"pid\": 1}}\n  ],\n  \"traceName\": \"x\"\n}}\n");
  out.flush();
  return events;
}

int run(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view a = argv[i];
    if (a == "--events" && i + 1 < argc)
      o.events = std::atoll(argv[++i]);
    else if (a == "--file" && i + 1 < argc)
      o.path = argv[++i];
    else if (a == "--gzip")
      o.gzip = true;
    else if (a == "--shapes")
      o.shapes = true;
    else if (a == "--device-only")
      o.device_only = true;
    else if (a == "--keep")
      o.keep = true;
    else if (a == "--reuse")
      o.reuse = o.keep = true;
  }
  const int64_t events = o.reuse ? o.events : write_trace(o);
  const auto mib = static_cast<double>(std::filesystem::file_size(o.path)) / (1 << 20);
  const auto seconds = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  const double cpu = cpu_s(), before = peak_mib();
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Capture> capture = open_capture(o.path);
  Analyser analyser;
  while (capture->read_window()) {
  }
  const double read_s = seconds(start), read_cpu = cpu_s() - cpu;
  const Diagnosis g = diagnose(*make_capture(std::move(capture->trace())), o.path);
  const double all_s = seconds(start), all_cpu = cpu_s() - cpu;
  fmt::print(
      "{} events, {} records, {:.0f} MiB{}: read {:.2f} s (CPU {:.2f}), all {:.2f} s (CPU {:.2f}); "
      "10 million events {:.2f} s, 10 million records {:.2f} s; peak {:.0f} MiB (writer: {:.0f})\n"
      "{}\n",
      events, g.analysis.records, mib, o.gzip ? " gzip" : "", read_s, read_cpu, all_s, all_cpu,
      all_s * 1e7 / static_cast<double>(events),
      all_s * 1e7 / static_cast<double>(g.analysis.records), peak_mib(), before,
      render_text(g).substr(0, 120));
  if (!o.keep) std::filesystem::remove(o.path);
  return 0;
}

}  // namespace
}  // namespace saturate::observe

int main(int argc, char** argv) { return saturate::observe::run(argc, argv); }
