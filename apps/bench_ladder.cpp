// SPDX-License-Identifier: Apache-2.0
// `saturate bench gemm --ladder`: every rung of kernels/gemm/sgemm against cuBLASLt's best
// algorithm.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <functional>

#include "apps/commands.h"
#include "apps/ladder_plot.h"
#include "base/error.h"
#include "base/features.h"
#include "base/philox.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/sgemm/sgemm.h"
#include "runtime/context.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::apps {
namespace {

Error needs_gpu() {
  return Error(Errc::unsupported, "bench",
               "gemm --ladder measures GPU kernels; it needs a GPU and a build with CUDA");
}

}  // namespace

#if SATURATE_WITH_CUDA
namespace {

using kernels::MatmulArgs;
using kernels::Transpose;

struct Contender {
  std::string name, file;
  double predicted;
  Fit (*fits)(const Context&, const MatmulArgs&) noexcept;
  std::function<void(const Context&, const MatmulArgs&)> launch;
};

struct Problem {
  int64_t m, n, k;
  Transpose ta = Transpose::no, tb = Transpose::no;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n * k); }
  double bytes() const { return 4.0 * static_cast<double>(m * k + k * n + m * n); }
};

// Uniform values in [-1, 1), from a pool: drawing gigabytes on the host would take minutes.
class Noise {
 public:
  explicit Noise(const Stream& stream)
      : stream_(stream), pool_(stream.device(), kPool * sizeof(float)) {
    std::vector<float> host(kPool);
    for (size_t i = 0; i < kPool; ++i)
      host[i] = static_cast<float>(philox4x32(7, i, 0).x[0]) * 0x1p-31f - 1.0f;
    copy_to_device(stream, pool_.data(), host.data(), pool_.bytes());
    stream.synchronize();
  }
  Buffer draw(int64_t count) const {
    Buffer out(stream_.device(), static_cast<size_t>(count) * sizeof(float));
    for (size_t at = 0; at < out.bytes(); at += pool_.bytes()) {
      copy_on_device(stream_, out.as<char>() + at, pool_.data(),
                     std::min(pool_.bytes(), out.bytes() - at));
    }
    return out;
  }

 private:
  static constexpr size_t kPool = (size_t{1} << 22) - 3;  // no divisor of a row
  const Stream& stream_;
  Buffer pool_;
};

class Measurement {
 public:
  Measurement(const Context& ctx, const Stream& stream, const Noise& noise, const Problem& p)
      : ctx_(ctx), stream_(stream), p_(p) {
    // Together twice the largest L2 cache there is (50 MB) and more, so that none is met again
    // warm.
    const auto sets = static_cast<size_t>(std::clamp(128e6 / p.bytes() + 1, 2.0, 64.0));
    for (size_t i = 0; i < sets; ++i)
      sets_.push_back({noise.draw(p.m * p.k), noise.draw(p.k * p.n), noise.draw(p.m * p.n)});
    stream.synchronize();
  }
  MatmulArgs args(size_t call) const {
    const auto& s = sets_[call % sets_.size()];
    const bool ta = p_.ta == Transpose::yes, tb = p_.tb == Transpose::yes;
    return {.a = s[0].data(),
            .b = s[1].data(),
            .d = s[2].data(),
            .m = p_.m,
            .n = p_.n,
            .k = p_.k,
            .lda = ta ? p_.m : p_.k,
            .ldb = tb ? p_.k : p_.n,
            .ldd = p_.n,
            .ta = p_.ta,
            .tb = p_.tb};
  }

  // cuBLASLt's best of its heuristics for this problem.
  std::string fastest_of_cublaslt() const {
    return kernels::matmul_cublaslt_fastest(ctx_, with_c(args(0)));
  }

  // Median milliseconds of each contender (0: it does not fit), in rounds over all of them so that
  // a clock that changes meets them alike. Calls run from graphs of about a millisecond.
  std::vector<double> run(const std::vector<Contender>& all, int64_t rounds) {
    std::vector<size_t> calls(all.size());
    std::vector<Graph> graphs(all.size());
    std::vector<std::vector<double>> ms(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const MatmulArgs x = with_c(args(0));
      if (!all[i].fits(ctx_, x)) continue;
      all[i].launch(ctx_, x);  // loads the kernel
      const double once = timed([&] { all[i].launch(ctx_, x); });
      if (once > kSlowMs) {
        ms[i].push_back(once);
        continue;
      }
      calls[i] = static_cast<size_t>(std::clamp(kSpanMs / once, 1.0, 200.0));
      graphs[i] = Graph::capture(stream_, [&] {
        for (size_t c = 0; c < calls[i]; ++c) all[i].launch(ctx_, with_c(args(c)));
      });
    }
    double warm = 0;
    while (warm < kWarmMs) {
      double pass = 0;
      for (const Graph& g : graphs) pass += g ? timed([&] { g.launch(stream_); }) : 0.0;
      if (pass == 0) break;
      warm += pass;
    }
    for (int64_t r = 0; r < rounds; ++r) {
      for (size_t i = 0; i < all.size(); ++i) {
        if (!graphs[i]) continue;
        ms[i].push_back(timed([&] { graphs[i].launch(stream_); }) / static_cast<double>(calls[i]));
      }
    }
    std::vector<double> medians;
    for (auto& v : ms) {
      std::sort(v.begin(), v.end());
      medians.push_back(v.empty() ? 0.0 : v[v.size() / 2]);
    }
    return medians;
  }

 private:
  static constexpr double kSlowMs = 150, kSpanMs = 2, kWarmMs = 300;

  static MatmulArgs with_c(MatmulArgs x) {
    x.c = x.d;
    x.ldc = x.ldd;
    return x;
  }
  double timed(const std::function<void()>& body) {
    begin_.record(stream_);
    body();
    end_.record(stream_);
    stream_.synchronize();
    return Event::elapsed_ms(begin_, end_);
  }

  const Context& ctx_;
  const Stream& stream_;
  Problem p_;
  std::vector<std::array<Buffer, 3>> sets_;
  Event begin_{stream_.device(), Event::Timing::on}, end_{stream_.device(), Event::Timing::on};
};

// GB/s of a copy, bytes read plus bytes written: the slope of the roofline.
double copy_bandwidth(const Stream& stream) {
  const Buffer from(stream.device(), size_t{1} << 30), to(stream.device(), from.bytes());
  Event begin(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    begin.record(stream);
    copy_on_device(stream, to.data(), from.data(), from.bytes());
    end.record(stream);
    stream.synchronize();
    best = std::max(best, 2e-6 * static_cast<double>(from.bytes()) / Event::elapsed_ms(begin, end));
  }
  return best;
}

char letter(Transpose t) { return t == Transpose::yes ? 'T' : 'N'; }

}  // namespace

int run_bench_ladder(const BenchOptions& o, const Context& ctx, const Stream& stream) {
  if (!ctx.device.is_cuda()) throw needs_gpu();
  std::vector<Contender> all;
  for (const kernels::SgemmRung& r : kernels::sgemm_rungs())
    all.push_back({r.name, r.file, r.predicted_tflops, r.fits, r.launch});
  all.push_back({"cuBLASLt", "", 0, kernels::matmul_cublaslt_cuda_fits, {}});
  std::vector<Problem> problems;
  if (!o.shape.empty()) {
    if (o.shape.size() != 3) {
      throw Error(Errc::invalid_argument, "bench",
                  "gemm --ladder takes --sizes N... for cubes, or one --shape M N K");
    }
    problems.push_back({o.shape[0], o.shape[1], o.shape[2]});
    for (const auto& [ta, tb] :
         {std::pair{Transpose::no, Transpose::yes}, {Transpose::yes, Transpose::no}}) {
      problems.push_back({o.shape[0], o.shape[1], o.shape[2], ta, tb});
    }
  } else {
    for (const int64_t n : o.sizes) problems.push_back({n, n, n});
  }
  const DeviceInfo info = device_info(ctx.device);
  const double peak = kernels::sgemm_peak_cuda(ctx), bandwidth = copy_bandwidth(stream);
  const Noise noise(stream);
  LadderPlot plot{.title = "fp32 matrix product, " + info.name,
                  .size_label = "m = n = k",
                  .sizes = {},
                  .lines = {},
                  .roofline = {}};
  for (const Contender& c : all) plot.lines.push_back({c.name, {}});
  fmt::print("{}, fp32 peak {:.1f} TFLOP/s, copy {:.0f} GB/s\n", info.name, peak * 1e-3, bandwidth);
  std::ofstream lines;
  if (!o.json.empty()) {
    lines.open(o.json);
    if (!lines)
      throw Error(Errc::io, "bench",
                  o.json + ": cannot be written; see that its folder exists and that you may");
  }
  for (const Problem& p : problems) {
    Measurement measurement(ctx, stream, noise, p);
    all.back().launch = [config = measurement.fastest_of_cublaslt()](const Context& c,
                                                                     const MatmulArgs& x) {
      kernels::matmul_cublaslt_configured(c, x, config);
    };
    const std::vector<double> ms = measurement.run(all, o.repeats);
    const double roof = std::min(peak, p.flops() / p.bytes() * bandwidth);
    fmt::print(
        "\n{} x {} x {} {}{}: roofline {:.1f} TFLOP/s\n{:<16} {:>10} {:>10} {:>9} {:>9} {:>9}\n",
        p.m, p.n, p.k, letter(p.ta), letter(p.tb), roof * 1e-3, "rung", "ms", "GFLOP/s", "cuBLAS",
        "roofline", "GB/s");
    plot.sizes.push_back(static_cast<double>(p.m));
    plot.roofline.push_back(roof * 1e-3);
    for (size_t i = 0; i < all.size(); ++i) {
      const double rate = ms[i] > 0 ? p.flops() * 1e-6 / ms[i] : 0.0;
      plot.lines[i].tflops.push_back(rate * 1e-3);
      if (rate == 0) continue;
      const double share = ms.back() / ms[i];
      fmt::print("{:<16} {:>10.4f} {:>10.0f} {:>8.1f}% {:>8.1f}% {:>9.1f}\n", all[i].name, ms[i],
                 rate, 100 * share, 100 * rate / roof, p.bytes() * 1e-6 / ms[i]);
      if (lines.is_open()) {
        lines << fmt::format(
            R"({{"what":"sgemm_ladder","gpu":"{}","rung":"{}","m":{},"n":{},"k":{},"layout":"{}{}",)"
            R"("ms":{:.5f},"gflops":{:.1f},"of_cublas":{:.4f},"of_roofline":{:.4f},"gb_per_s":{:.1f}}})"
            "\n",
            info.name, all[i].name, p.m, p.n, p.k, letter(p.ta), letter(p.tb), ms[i], rate, share,
            rate / roof, p.bytes() * 1e-6 / ms[i]);
      }
    }
  }
  if (!o.plot.empty()) write_svg(plot, o.plot);
  return 0;
}

#else
int run_bench_ladder(const BenchOptions&, const Context&, const Stream&) { throw needs_gpu(); }
#endif

}  // namespace saturate::apps
