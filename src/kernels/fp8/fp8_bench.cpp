// SPDX-License-Identifier: Apache-2.0
// fp8: operands rounded, as shares of a copy of the same bytes, and products by the first algorithms of cuBLASLt's
// list, with sums in 14 bits (fast) and in fp32. Normal data, buffers rotated past L2, medians. One JSON line a case.
// With any argument: rounding alone.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/fp8/fp8_impl.h"
#include "kernels/gemm/matmul_plan.h"
#include "runtime/memory.h"
#include "runtime/replay.h"
#include "runtime/stream.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int kSets = 4, kRounds = 9, kCandidates = 6;

Buffer random_values(const Stream& s, int64_t count) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> some(1 << 16), host(static_cast<size_t>(count));
  for (uint16_t& x : some) x = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(rng)) >> 16);
  for (size_t i = 0; i < host.size(); ++i) host[i] = some[(i * 40503u + i / 65536) % some.size()];
  Buffer b(s.device(), host.size() * 2);
  copy_to_device(s, b.data(), host.data(), b.bytes());
  s.synchronize();
  return b;
}

// Microseconds of a call among 2 kSets calls in a row, as a graph; body(i) takes the i-th set of buffers.
double time_us(const Stream& stream, const std::function<void(int)>& body) {
  Replay replay(true);
  const auto all = [&] {
    for (int i = 0; i < 2 * kSets; ++i) body(i % kSets);
  };
  std::vector<double> us;
  Event begin(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  for (int round = -3; round < kRounds; ++round) {
    begin.record(stream);
    replay.enqueue(stream, all);
    end.record(stream);
    stream.synchronize();
    if (round >= 0) us.push_back(Event::elapsed_ms(begin, end) * 1e3 / (2 * kSets));
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

struct Rounding {
  const char* name;
  Fp8Prepare prepare;
  bool turned, copies, sums;
};

void measure_rounding(const Context& ctx, const Stream& stream, int64_t rows, int64_t cols,
                      const Rounding& how) {
  const auto count = static_cast<size_t>(rows * cols);
  std::vector<Buffer> x, given, y, turned, copy;
  for (int i = 0; i < kSets; ++i) {
    x.push_back(random_values(stream, rows * cols));
    given.push_back(random_values(stream, rows * cols));
    y.emplace_back(stream.device(), count);
    turned.emplace_back(stream.device(), count);
    copy.emplace_back(stream.device(), 2 * count);
  }
  Fp8Site of_steps;
  of_steps.scale = 16, of_steps.amax = 8;
  const Buffer site(stream.device(), sizeof of_steps),
      sums(stream.device(), static_cast<size_t>(cols) * 4),
      partial(stream.device(), fp8_partial_bytes(ctx.device, rows, cols));
  copy_to_device(stream, site.data(), &of_steps, sizeof of_steps);
  stream.synchronize();
  const double us = time_us(stream, [&](int i) {
    const auto s = static_cast<size_t>(i);
    fp8_quantize_cuda(ctx, {.x = x[s].data(),
                            .y = y[s].as<uint8_t>(),
                            .transposed = how.turned ? turned[s].as<uint8_t>() : nullptr,
                            .site = site.as<Fp8Site>(),
                            .rows = rows,
                            .cols = cols,
                            .dtype = DType::bf16,
                            .prepare = how.prepare,
                            .activation = ActivationKind::gelu_tanh,
                            .given = how.prepare == Fp8Prepare::slope ? given[s].data() : nullptr,
                            .copy = how.copies ? copy[s].data() : nullptr,
                            .column_sum = how.sums ? sums.as<float>() : nullptr,
                            .partial = how.sums ? partial.as<float>() : nullptr,
                            .scale_known = true});
  });
  const int each = 3 + how.turned + 2 * how.copies + 2 * (how.prepare == Fp8Prepare::slope);
  const auto half = static_cast<size_t>(each) * count / 2;
  const Buffer from(stream.device(), half * kSets), to(stream.device(), half * kSets);
  const double copied = time_us(stream, [&](int i) {
    const size_t at = static_cast<size_t>(i) * half;
    copy_on_device(stream, to.as<char>() + at, from.as<char>() + at, half);
  });
  fmt::print(
      "{{\"what\":\"fp8 rounding\",\"case\":\"{}\",\"rows\":{},\"cols\":{},\"us\":{:.1f},"
      "\"of_copy\":{:.2f},\"gbytes_per_s\":{:.0f}}}\n",
      how.name, rows, cols, us, copied / us, each * static_cast<double>(count) / us / 1e3);
}

// d (m, n) of codes; beside it the product in bf16 as a step would choose it.
void measure_product(const Context& ctx, const Stream& stream, const char* name, int64_t m,
                     int64_t n, int64_t k, Fp8Format format, DType type, bool adds) {
  std::vector<Buffer> a, b, d, a16, b16;
  for (int i = 0; i < kSets; ++i) {
    a16.push_back(random_values(stream, m * k)), b16.push_back(random_values(stream, n * k));
    a.emplace_back(stream.device(), static_cast<size_t>(m * k));
    b.emplace_back(stream.device(), static_cast<size_t>(n * k));
    d.emplace_back(stream.device(), static_cast<size_t>(m * n) * size_of(type));
    fill_bytes(stream, d.back().data(), 0, d.back().bytes());
  }
  Fp8Site of_steps;
  of_steps.scale = 16;
  const Buffer site(stream.device(), sizeof of_steps);
  copy_to_device(stream, site.data(), &of_steps, sizeof of_steps);
  for (size_t i = 0; i < a.size(); ++i)
    for (const auto& [from, to, rows, f] :
         {std::tuple{&a16[i], &a[i], m, format}, std::tuple{&b16[i], &b[i], n, Fp8Format::e4m3}})
      fp8_quantize_cuda(ctx, {.x = from->data(),
                              .y = to->as<uint8_t>(),
                              .site = site.as<Fp8Site>(),
                              .rows = rows,
                              .cols = k,
                              .dtype = DType::bf16,
                              .format = f,
                              .scale_known = true});
  stream.synchronize();
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
  const auto rate = [&](double us) { return flops / us / 1e6; };
  std::string line = fmt::format(
      "{{\"what\":\"fp8 product\",\"case\":\"{}\",\"m\":{},\"n\":{},\"k\":{}", name, m, n, k);
  MatmulArgs plain{.m = m,
                   .n = n,
                   .k = k,
                   .lda = k,
                   .ldb = k,
                   .ldc = n,
                   .ldd = n,
                   .tb = Transpose::yes,
                   .ab_type = DType::bf16,
                   .d_type = type,
                   .beta = adds ? 1.0f : 0.0f};
  const auto bf16 = [&](int i) {
    const auto s = static_cast<size_t>(i);
    plain.a = a16[s].data(), plain.b = b16[s].data(), plain.c = plain.d = d[s].data();
    matmul(ctx, plain);
  };
  line += fmt::format(",\"bf16\":{:.0f}", rate(time_us(stream, bf16)));
  const auto product = [&](size_t s, bool fast) {
    return Fp8MatmulArgs{.a = a[s].as<uint8_t>(),
                         .b = b[s].as<uint8_t>(),
                         .a_site = site.as<Fp8Site>(),
                         .b_site = site.as<Fp8Site>(),
                         .c = adds ? d[s].data() : nullptr,
                         .d = d[s].data(),
                         .m = m,
                         .n = n,
                         .k = k,
                         .dtype = type,
                         .a_format = format,
                         .fast = fast};
  };
  for (const bool fast : {true, false}) {
    line += fmt::format(",\"{}\":[", fast ? "fast" : "exact");
    for (int candidate = 0; candidate < kCandidates; ++candidate) {
      try {
        const double us = time_us(stream, [&](int i) {
          fp8_matmul_candidate_cuda(ctx, product(static_cast<size_t>(i), fast), candidate);
        });
        line += fmt::format("{}{:.0f}", candidate > 0 ? "," : "", rate(us));
      } catch (const Error&) {  // the list is shorter
        break;
      }
    }
    line += "]";
  }
  fmt::print("{}}}\n", line);
}

}  // namespace

int main(int arguments, char**) {
  if (cuda_device_count() == 0) {
    fmt::print(stderr, "saturate_fp8_bench: no GPU\n");
    return 1;
  }
  const Stream stream({DeviceKind::cuda, 0});
  const Buffer workspace(stream.device(), matmul_workspace_bytes(stream.device(), DType::bf16));
  const Context ctx{stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  constexpr Rounding kRoundings[] = {
      {"rows", Fp8Prepare::nothing, false, false, false},
      {"turned", Fp8Prepare::nothing, true, false, false},
      {"turned, sums", Fp8Prepare::nothing, true, false, true},
      {"gelu, turned", Fp8Prepare::activation, true, false, false},
      {"slope of gelu, turned, sums", Fp8Prepare::slope, true, false, true}};
  for (const auto& [rows, cols] : {std::pair{25088, 512},
                                   {25088, 2048},
                                   {32768, 768},
                                   {32768, 3072},
                                   {8192, 1600},
                                   {8192, 6400}})
    for (const Rounding& r : kRoundings) measure_rounding(ctx, stream, rows, cols, r);
  if (arguments > 1) return 0;  // the products take most of the time
  struct Layer {
    const char* name;
    int64_t rows, in, out;
  };
  constexpr Layer kLayers[] = {
      {"base qkv", 25088, 512, 1536},     {"base ffn in", 25088, 512, 2048},
      {"base ffn out", 25088, 2048, 512}, {"gpt qkv", 32768, 768, 2304},
      {"gpt out", 32768, 768, 768},       {"gpt ffn in", 32768, 768, 3072},
      {"gpt ffn out", 32768, 3072, 768},  {"big ffn in", 25088, 1024, 4096},
      {"xl qkv", 8192, 1600, 4800},       {"xl ffn in", 8192, 1600, 6400},
      {"xl ffn out", 8192, 6400, 1600}};
  for (const Layer& l : kLayers) {
    const std::string name = l.name;
    measure_product(ctx, stream, (name + " forward").c_str(), l.rows, l.out, l.in, Fp8Format::e4m3,
                    DType::bf16, false);
    measure_product(ctx, stream, (name + " input").c_str(), l.rows, l.in, l.out, Fp8Format::e5m2,
                    DType::bf16, false);
    measure_product(ctx, stream, (name + " weight").c_str(), l.out, l.in, l.rows, Fp8Format::e5m2,
                    DType::f32, false);
  }
}
