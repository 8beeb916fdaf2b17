// SPDX-License-Identifier: Apache-2.0
// Attention of a step on one core: one JSON line for a case and an implementation, microseconds a row,
// the median of 40 turns over as many caches as `megabytes` says, so that those of several come from memory.
// usage: saturate_cached_row_bench
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels/decode/cached_attention_impl.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "runtime/parallel_for.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int64_t kHeads = 8, kSize = 64, kWidth = kHeads * kSize;

struct Case {
  const char* name;
  int64_t rows, positions, bound;  // of each row, and what it has room for
  int64_t beams;                   // rows that share a source, or three in eight of their slots
  bool memory;                     // of a source
  int64_t caches;
};

std::vector<float> numbers(int64_t count) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> each(-0.5f, 0.5f);
  std::vector<float> all(static_cast<size_t>(count));
  for (float& x : all) x = each(random);
  return all;
}

void measure(const Case& c) {
  const int64_t slots = (c.memory ? c.rows / c.beams : c.rows) * c.bound;
  std::vector<float> cache = numbers(c.caches * slots * 2 * kWidth),
                     o(static_cast<size_t>(c.rows * kWidth));
  const std::vector<float> qkv = numbers(c.rows * kWidth * (c.memory ? 1 : 3));
  std::vector<int32_t> starts, last, table;
  for (int64_t r = 0; r < c.rows; ++r) {
    starts.push_back(static_cast<int32_t>((c.memory ? r / c.beams : r) * c.bound));
    last.push_back(static_cast<int32_t>(c.memory ? c.positions : c.positions - 1));
    for (int64_t j = 0; j < c.bound; ++j) {
      const int64_t owner = j < c.bound * 3 / 8 ? r / c.beams * c.beams : r;
      table.push_back(static_cast<int32_t>(owner * c.bound + j));
    }
  }
  const auto microseconds = [&](void (*run)(const Context&, const CachedAttentionArgs&)) {
    std::vector<double> turns;
    for (int turn = 0; turn < 40; ++turn) {
      const auto begin = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < c.caches; ++i) {
        CachedAttentionArgs a{.qkv = qkv.data(),
                              .cache = cache.data() + i * slots * 2 * kWidth,
                              .o = o.data(),
                              .starts = starts.data(),
                              .slots = c.memory ? nullptr : table.data(),
                              .rows = c.rows,
                              .heads = kHeads,
                              .kv_heads = kHeads,
                              .head_size = kSize,
                              .max_positions = c.bound,
                              .scale = 0.125f};
        (c.memory ? a.lengths : a.positions) = last.data();
        run({}, a);
      }
      const std::chrono::duration<double, std::micro> spent =
          std::chrono::steady_clock::now() - begin;
      turns.push_back(spent.count() / static_cast<double>(c.caches * c.rows));
    }
    std::ranges::nth_element(turns, turns.begin() + 20);
    return turns[20];
  };
  const auto say = [&](const char* kernel, double us) {
    std::printf(
        "{\"case\":\"%s\",\"rows\":%lld,\"positions\":%lld,\"megabytes\":%.0f,\"kernel\":\"%s\","
        "\"us_a_row\":%.3f}\n",
        c.name, static_cast<long long>(c.rows), static_cast<long long>(c.positions),
        static_cast<double>(cache.size()) * 4e-6, kernel, us);
  };
  say("cached_attention_cpu", microseconds(cached_attention_cpu));
  if (cpu_level() >= CpuLevel::avx512)
    say("cached_attention_avx512_cpu", microseconds(cached_attention_avx512_cpu));
}

}  // namespace

int main() {
  const InOneThread one;
  constexpr Case kCases[] = {{"in the cache", 8, 20, 24, 1, true, 1},
                             {"a source each", 128, 20, 24, 1, true, 8},
                             {"a source for four beams", 256, 20, 24, 4, true, 8},
                             {"of its own", 128, 10, 21, 1, false, 8},
                             {"four beams", 256, 10, 21, 4, false, 8},
                             {"a long source each", 128, 100, 104, 1, true, 4}};
  for (const Case& c : kCases) measure(c);
  return 0;
}
