// SPDX-License-Identifier: Apache-2.0
// Products of tf32 on Hopper's tensor cores against the best of cuBLASLt's first eight algorithms,
// in one process: every candidate in every round, operands rotate past L2, medians. Errors against
// double precision on a few rows, divided by sqrt(k). One JSON line a product.
// usage: saturate_tf32_bench [--trace]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/wgmma/matmul_tf32.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int kPeers = 8, kRounds = 7;
constexpr size_t kRotate = size_t{160} << 20;  // bytes of operands before one is used again: 3 L2
constexpr int64_t kErrorRows = 4;
bool trace = false;

struct Candidate {
  std::string name;
  std::function<void(size_t set)> run;
  std::vector<double> ms = {};
  double median() {
    std::nth_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2), ms.end());
    return ms[ms.size() / 2];
  }
};

// Normal values: a pattern of prime length, repeated.
template <class T>
std::vector<T> random_values(int64_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<T> v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i) {
    if (i >= 1048573)
      v[i] = v[i - 1048573];
    else
      v[i] = T(normal(rng));
  }
  return v;
}

template <class T>
Buffer on_device(const Stream& s, const std::vector<T>& v) {
  Buffer b(s.device(), v.size() * sizeof(T));
  copy_to_device(s, b.data(), v.data(), b.bytes());
  s.synchronize();
  return b;
}

void measure(const Stream& stream, std::vector<Candidate>& all, size_t sets, double flops) {
  const int launches = std::max(1, static_cast<int>(4e-3 / (flops / 300e12)));
  Event begin(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  size_t set = 0;
  for (int round = -2; round < kRounds; ++round) {
    for (Candidate& c : all) {
      begin.record(stream);
      for (int i = 0; i < launches; ++i) c.run(set++ % sets);
      end.record(stream);
      stream.synchronize();
      if (round >= 0) c.ms.push_back(Event::elapsed_ms(begin, end) / launches);
    }
  }
  if (!trace) return;
  for (Candidate& c : all)
    fmt::print("    {:<70} {:8.1f} TFLOP/s\n", c.name, flops / c.median() / 1e9);
}

// Fastest of the candidates whose name starts so.
Candidate& best(std::vector<Candidate>& all, const char* prefix) {
  Candidate* found = nullptr;
  for (Candidate& c : all) {
    if (c.name.starts_with(prefix) && (found == nullptr || c.median() < found->median()))
      found = &c;
  }
  return *found;
}

struct Error2 {
  double max = 0, rms = 0;
};

// Of rows spread over d (m, n) against double precision, over sqrt(k).
Error2 error_of(const Stream& s, const MatmulArgs& x, const std::vector<float>& a,
                const std::vector<float>& b) {
  const bool ta = x.ta == Transpose::yes, tb = x.tb == Transpose::yes;
  Error2 e;
  std::vector<float> got(static_cast<size_t>(x.n));
  for (int64_t r = 0; r < kErrorRows; ++r) {
    const int64_t row = (2 * r + 1) * x.m / (2 * kErrorRows);
    copy_to_host(s, got.data(), static_cast<const float*>(x.d) + row * x.ldd, got.size() * 4);
    s.synchronize();
    std::vector<double> sum(got.size());
    for (int64_t j = 0; tb && j < x.n; ++j) {
      for (int64_t k = 0; k < x.k; ++k)
        sum[static_cast<size_t>(j)] +=
            double{a[static_cast<size_t>(ta ? k * x.lda + row : row * x.lda + k)]} *
            b[static_cast<size_t>(j * x.ldb + k)];
    }
    for (int64_t k = 0; !tb && k < x.k; ++k) {
      const double left = a[static_cast<size_t>(ta ? k * x.lda + row : row * x.lda + k)];
      for (int64_t j = 0; j < x.n; ++j)
        sum[static_cast<size_t>(j)] += left * b[static_cast<size_t>(k * x.ldb + j)];
    }
    for (size_t j = 0; j < sum.size(); ++j) {
      const double off = std::fabs(got[j] - sum[j]) / std::sqrt(static_cast<double>(x.k));
      e.max = std::max(e.max, off);
      e.rms += off * off;
    }
  }
  e.rms = std::sqrt(e.rms / static_cast<double>(kErrorRows * x.n));
  return e;
}

void measure_tf32(const Stream& stream, const char* form, int64_t s) {
  const auto va = random_values<float>(s * s, 1), vb = random_values<float>(s * s, 2);
  const size_t sets = kRotate / static_cast<size_t>(s * s * 8) + 1;
  std::vector<Buffer> a, b;
  for (size_t i = 0; i < sets; ++i) {
    a.push_back(on_device(stream, va));
    b.push_back(on_device(stream, vb));
  }
  const Buffer d(stream.device(), static_cast<size_t>(s * s) * 4);
  const Buffer large(stream.device(), static_cast<size_t>(s * s) * 8);
  const Context ctx{stream.device(), stream.native(), large.data(), kWorkspaceBytes};
  Context roomy = ctx;
  roomy.workspace_bytes = large.bytes();
  const auto args = [&](size_t set) {
    return MatmulArgs{.a = a[set].data(),
                      .b = b[set].data(),
                      .c = d.data(),
                      .d = d.data(),
                      .m = s,
                      .n = s,
                      .k = s,
                      .lda = s,
                      .ldb = s,
                      .ldc = s,
                      .ldd = s,
                      .ta = form[0] == 'T' ? Transpose::yes : Transpose::no,
                      .tb = form[1] == 'T' ? Transpose::yes : Transpose::no,
                      .allow_tf32 = true};
  };
  std::vector<Candidate> all;
  for (const std::string& config : matmul_cublaslt_configurations(ctx, args(0), kPeers)) {
    all.push_back({"cuBLASLt " + config,
                   [&, config](size_t i) { matmul_cublaslt_configured(ctx, args(i), config); }});
  }
  all.push_back({"ours", [&](size_t i) { matmul_tf32_cuda(roomy, args(i)); }});
  const double flops =
      2.0 * static_cast<double>(s) * static_cast<double>(s) * static_cast<double>(s);
  measure(stream, all, sets, flops);
  const auto tflops = [&](Candidate& c) { return flops / c.median() / 1e9; };
  Candidate& peer = best(all, "cuBLASLt");
  all[0].run(0);
  const Error2 theirs = error_of(stream, args(0), va, vb);
  matmul_tf32_cuda(roomy, args(0));
  const Error2 mine = error_of(stream, args(0), va, vb);
  fmt::print(
      R"({{"what":"gemm tf32","form":"{}","size":{},"cublaslt_tflops":{:.1f},"tflops":{:.1f},)"
      R"("ratio":{:.3f},"cublaslt_max_error":{:.3g},"max_error":{:.3g},)"
      R"("cublaslt_rms_error":{:.3g},"rms_error":{:.3g}}})"
      "\n",
      form, s, tflops(peer), tflops(all.back()), peer.median() / all.back().median(), theirs.max,
      mine.max, theirs.rms, mine.rms);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) trace |= !std::strcmp(argv[i], "--trace");
  if (cuda_device_count() == 0) {
    fmt::print(stderr, "saturate_tf32_bench: no GPU\n");
    return 1;
  }
  const Stream stream({DeviceKind::cuda, 0});
  for (const int64_t s : {4096, 8192}) {
    for (const char* form : {"NT", "NN", "TN"}) measure_tf32(stream, form, s);
  }
}
