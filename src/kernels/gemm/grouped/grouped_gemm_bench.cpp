// SPDX-License-Identifier: Apache-2.0
// Grouped products against dense ones of the same arithmetic, in one process: every candidate in
// every round, operands rotated past L2, medians of eleven. One JSON line a form and distribution.
//   dense     one product of all rows with one weight: the best of cuBLASLt's first algorithms, and
//             ours as the model chooses
//   batched   cuBLASLt, a batch of the groups: the same weights and results, equal rows each (its
//             first algorithm; what the memory traffic of the groups allows)
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/gemm/grouped/grouped_gemm.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int64_t kGroups = 64, kRows = 64 * 256;
constexpr int kRounds = 11, kPeers = 8;

Buffer random_operand(const Stream& s, int64_t count) {
  std::vector<uint16_t> pattern(1048573);  // prime: no two rows alike
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  for (uint16_t& x : pattern) {
    const float f = normal(rng);
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    x = static_cast<uint16_t>(bits >> 16);
  }
  Buffer b(s.device(), static_cast<size_t>(count) * 2);
  size_t done = std::min(b.bytes(), pattern.size() * 2);
  copy_to_device(s, b.data(), pattern.data(), done);
  s.synchronize();
  while (done < b.bytes()) {
    const size_t more = std::min(done, b.bytes() - done);
    copy_on_device(s, b.as<char>() + done, b.data(), more);
    done += more;
  }
  s.synchronize();
  return b;
}

struct Distribution {
  const char* name;
  std::vector<int32_t> offsets;
};
Distribution uniform() {
  Distribution d{"256 rows each", {}};
  for (int32_t g = 0; g <= kGroups; ++g) d.offsets.push_back(g * 256);
  return d;
}
// Group i has a share of 1 / (i + 1), in an order that does not follow the size.
Distribution zipf() {
  Distribution d{"Zipf", {0}};
  std::array<double, kGroups> shares;
  for (size_t i = 0; i < shares.size(); ++i)
    shares[i * 37 % shares.size()] = 1.0 / static_cast<double>(i + 1);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  double upto = 0;
  for (const double s : shares) {
    upto += s / sum;
    d.offsets.push_back(static_cast<int32_t>(std::lround(upto * kRows)));
  }
  d.offsets.back() = kRows;
  return d;
}

struct Candidate {
  std::string name;
  std::function<void(size_t set)> run;
  std::vector<double> ms;
  double median() {
    std::nth_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2), ms.end());
    return ms[ms.size() / 2];
  }
};

void measure(const Context& ctx, const Stream& stream, GroupedForm form, int64_t n, int64_t k) {
  constexpr const char* kNames[] = {"forward", "input", "weight"};
  const bool forward = form == GroupedForm::forward, weight = form == GroupedForm::weight_gradient;
  constexpr size_t kSets = 2;  // each far above L2
  std::vector<Buffer> a, b;
  for (size_t i = 0; i < kSets; ++i) {
    a.push_back(random_operand(stream, kRows * (forward ? k : n)));
    b.push_back(random_operand(stream, weight ? kRows * k : kGroups * n * k));
  }
  const Buffer d(stream.device(),
                 static_cast<size_t>(weight ? kGroups * n * k * 4 : kRows * (forward ? n : k) * 2));
  const auto dense = [&](size_t set) {
    const int64_t columns = forward ? n : k;
    return MatmulArgs{.a = a[set].data(),
                      .b = b[set].data(),
                      .c = d.data(),
                      .d = d.data(),
                      .m = weight ? n : kRows,
                      .n = columns,
                      .k = weight ? kRows : (forward ? k : n),
                      .lda = forward ? k : n,
                      .ldb = k,
                      .ldc = columns,
                      .ldd = columns,
                      .ta = weight ? Transpose::yes : Transpose::no,
                      .tb = forward ? Transpose::yes : Transpose::no,
                      .ab_type = DType::bf16,
                      .d_type = weight ? DType::f32 : DType::bf16};
  };
  std::vector<Candidate> all;
  for (const std::string& config : matmul_cublaslt_configurations(ctx, dense(0), kPeers)) {
    all.push_back({"dense",
                   [&, config](size_t set) { matmul_cublaslt_configured(ctx, dense(set), config); },
                   {}});
  }
  const size_t peers = all.size();
  all.push_back({"dense, ours", [&](size_t set) { matmul_wgmma_cuda(ctx, dense(set)); }, {}});
  all.push_back({"batched",
                 [&](size_t set) {
                   MatmulArgs x = dense(set);
                   x.batch = kGroups;
                   (weight ? x.k : x.m) = kRows / kGroups;
                   x.stride_a = kRows / kGroups * x.lda;
                   x.stride_b = weight ? kRows / kGroups * k : n * k;
                   x.stride_d = x.stride_c = x.m * x.ldd;
                   matmul_cublaslt_cuda(ctx, x);
                 },
                 {}});
  const Distribution distributions[] = {uniform(), zipf()};
  std::vector<Buffer> offsets;
  for (const Distribution& way : distributions) {
    offsets.emplace_back(stream.device(), way.offsets.size() * 4);
    copy_to_device(stream, offsets.back().data(), way.offsets.data(), way.offsets.size() * 4);
    stream.synchronize();
    for (const float beta : {0.0f, 1.0f}) {
      if (!weight && beta != 0) continue;
      all.push_back({fmt::format("{}{}", way.name, beta != 0 ? ", beta 1" : ""),
                     [&, beta, at = offsets.back().as<int32_t>()](size_t set) {
                       grouped_gemm(ctx, {.form = form,
                                          .a = a[set].data(),
                                          .b = b[set].data(),
                                          .d = d.data(),
                                          .offsets = at,
                                          .groups = kGroups,
                                          .rows = kRows,
                                          .n = n,
                                          .k = k,
                                          .dtype = DType::bf16,
                                          .beta = beta});
                     },
                     {}});
    }
  }
  const double flops = 2.0 * static_cast<double>(kRows * n * k);
  Event begin(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  for (int round = -2; round < kRounds; ++round) {
    for (Candidate& c : all) {
      begin.record(stream);
      for (size_t i = 0; i < 4; ++i) c.run(i % kSets);
      end.record(stream);
      stream.synchronize();
      if (round >= 0) c.ms.push_back(Event::elapsed_ms(begin, end) / 4);
    }
  }
  double peer = 1e9;
  for (size_t i = 0; i < peers; ++i) peer = std::min(peer, all[i].median());
  const double ours = all[peers].median(), batched = all[peers + 1].median();
  for (size_t i = peers + 2; i < all.size(); ++i) {
    const double ms = all[i].median();
    fmt::print(
        R"({{"what":"grouped gemm","form":"{}","groups":{},"rows":{},"n":{},"k":{},"distribution":"{}",)"
        R"("tflops":{:.1f},"dense_cublaslt_tflops":{:.1f},"dense_ours_tflops":{:.1f},"batched_tflops":{:.1f},)"
        R"("of_dense_cublaslt":{:.3f},"of_dense_ours":{:.3f},"of_batched":{:.3f}}})"
        "\n",
        kNames[static_cast<int>(form)], kGroups, kRows, n, k, all[i].name, flops / ms / 1e9,
        flops / peer / 1e9, flops / ours / 1e9, flops / batched / 1e9, peer / ms, ours / ms,
        batched / ms);
  }
  std::fflush(stdout);
}

}  // namespace

int main() {
  if (cuda_device_count() == 0) {
    fmt::print(stderr, "saturate_grouped_gemm_bench: no GPU\n");
    return 1;
  }
  const Stream stream({DeviceKind::cuda, 0});
  const Buffer workspace(stream.device(), kWorkspaceBytes);
  const Context ctx{stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  for (const auto& [n, k] : {std::array<int64_t, 2>{2048, 2048}, {4096, 1024}, {1024, 4096}}) {
    for (const GroupedForm form :
         {GroupedForm::forward, GroupedForm::input_gradient, GroupedForm::weight_gradient})
      measure(ctx, stream, form, n, k);
  }
}
