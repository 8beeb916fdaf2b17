// SPDX-License-Identifier: Apache-2.0
// Fails when CPU code has become slower: each case is timed in turns with fixed work in the same process (yardsticks.h),
// and their ratio must stay below a limit, so that the machine's speed and its other work cancel.
//
//   saturate_gate              every case: a JSON line each; exit code 1 when one is above its limit
//   saturate_gate --prove      every case does its work four times: exit code 1 when one still stays below its limit
//   saturate_gate --spread N   N measurements of each case, to set the limits from: median and largest
//
// Times are those of this thread on a CPU, the least of several; what is not as it should be is measured again, twice at most.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/batch_fill.h"
#include "data/packer.h"
#include "data/testing/sample_corpus.h"
#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/gemm/matmul.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/norm/norm.h"
#include "kernels/optimizer/optimizer.h"
#include "observe/read/json_tokens.h"
#include "runtime/parallel_for.h"
#include "yardsticks.h"

namespace saturate::gate {
namespace {

using Work = std::function<void()>;

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}
double timed(const Work& work, int times) {
  const double begin = cpu_ms();
  for (int i = 0; i < times; ++i) work();
  return (cpu_ms() - begin) / times;
}
// Repetitions that take about two milliseconds.
int times_of(const Work& work) {
  work();
  const double once = std::max(timed(work, 1), 1e-4);
  return std::max(1, static_cast<int>(2.0 / once));
}

// Time of the case by that of the yardstick.
double ratio_of(const Work& work, const Work& yardstick) {
  constexpr int kRounds = 31;
  const int times = times_of(work), yard_times = times_of(yardstick);
  double least = 1e30, least_yard = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    least_yard = std::min(least_yard, timed(yardstick, yard_times));
    least = std::min(least, timed(work, times));
  }
  return least / least_yard;
}

// Keeps what is computed from being left out.
volatile uint64_t g_kept = 0;

std::vector<float> numbers(int64_t count, float scale = 1.0f) {
  std::vector<float> v(static_cast<size_t>(count));
  uint64_t x = 88172645463325252ull;
  for (float& f : v) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    f = scale * (static_cast<float>(x >> 40) * 0x1p-23f - 1.0f);
  }
  return v;
}

struct Yardsticks {
  std::vector<char> from = std::vector<char>(size_t{1} << 20, 'x'), to = from;
  std::vector<float> a = numbers(128 * 128), b = a, c = a;
  Work copy = [this] { gate::copy(to.data(), from.data(), to.size()); };
  Work product = [this] { gate::product(c.data(), a.data(), b.data(), 128); };
  std::vector<uint32_t> mixed = std::vector<uint32_t>(20000), sorted = mixed;
  Work sort = [this] { gate::sort(sorted.data(), mixed.data(), mixed.size()); };
  Yardsticks() {
    uint32_t x = 12345;
    for (uint32_t& m : mixed) m = x = x * 1664525u + 1013904223u;
  }
};

struct Case {
  const char* name;
  const char* yardstick;
  Work Yardsticks::*by;
  // Above it the case has become slower: a little above the largest of 15 to 40 measurements on two CPUs (x86-64-v3) that
  // other programs kept busy, and below twice the least of them.
  double limit;
  Work work;
};

// All that the cases work on.
struct Bench {
  static constexpr int64_t kRows = 128, kCols = 512, kVocab = 4000, kParameters = int64_t{1} << 18;
  std::vector<float> x = numbers(kRows * kCols), y = x, z = x, sum = x, weight = numbers(kCols),
                     rows = numbers(kRows), more = rows, w = numbers(kCols * kCols),
                     logits = numbers(kRows * kVocab), qkv = numbers(256 * 3 * 256),
                     o = numbers(256 * 256), lse = numbers(4 * 256), master = numbers(kParameters),
                     m = numbers(kParameters, 0.1f), v = std::vector<float>(kParameters, 0.5f),
                     grad = numbers(kParameters, 0.1f);
  std::vector<int32_t> targets = std::vector<int32_t>(kRows, 3), cu{0, 256};
  std::vector<kernels::DecayRule> rules = std::vector<kernels::DecayRule>(
      kParameters / kernels::kParameterAlign, kernels::DecayRule::decayed);
  StepState state;
  data::SampleFolder folder;
  data::Tokenizer tokenizer = data::test_tokenizer();
  data::TokenCache cache =
      data::test_cache(folder, data::test_parallel_corpus(folder, 4000), tokenizer);
  data::PackerOptions packing{.shape = data::suggest_shape(cache, 4096, 128, 128)};
  data::BatchFiller filler{cache, packing};
  std::vector<int32_t> block = std::vector<int32_t>(static_cast<size_t>(filler.layout().words)),
                       ids;
  std::string text, json = "[";

  Bench() {
    state.totals[2] = 5, state.grad_square_sum = 1;
    for (uint64_t i = 0; i < 20; ++i) text += data::test_sentence(i, 20) + " ";
    for (int i = 0; i < 500; ++i)
      json += fmt::format(
          R"({{"ph":"X","cat":"kernel","name":"void gemm_{}<float>","ts":{}.{},"args":{{"stream":7}}}},)",
          i, 1234567 + 13 * i, i % 10);
    json.back() = ']';
  }
  void loader() {
    data::Packer packer(cache, packing);
    std::vector<data::PackedItem> items;
    for (int i = 0; i < 4 && packer.next(items); ++i)
      g_kept = static_cast<uint64_t>(filler.fill(items, block.data()).target_tokens);
  }
  void read_json() {
    observe::JsonTokens tokens(json, 0, "trace");
    size_t bytes = 0;
    while (tokens.next() != observe::JsonToken::end) bytes += tokens.text().size();
    g_kept = bytes;
  }
};

std::vector<Case> cases_of(Bench& b) {
  using namespace kernels;
  constexpr int64_t kRows = Bench::kRows, kCols = Bench::kCols;
  const Context ctx{};
  static constexpr OwnedRange kAll[] = {{0, Bench::kParameters, 0}};
  Work Yardsticks::*const copy = &Yardsticks::copy,
                          Yardsticks::*const product = &Yardsticks::product,
                          Yardsticks::*const sort = &Yardsticks::sort;
  return {
      {"matmul", "product", product, 1.5,
       [&b, ctx] {
         matmul(ctx, {.a = b.x.data(),
                      .b = b.w.data(),
                      .d = b.y.data(),
                      .m = kRows,
                      .n = kCols,
                      .k = kCols,
                      .lda = kCols,
                      .ldb = kCols,
                      .ldc = kCols,
                      .ldd = kCols,
                      .tb = Transpose::yes});
       }},
      {"attention_forward", "product", product, 1.1,
       [&b, ctx] {
         attention_forward(ctx, {.q = b.qkv.data(),
                                 .k = b.qkv.data() + 256,
                                 .v = b.qkv.data() + 512,
                                 .o = b.o.data(),
                                 .lse = b.lse.data(),
                                 .cu_q = b.cu.data(),
                                 .cu_k = b.cu.data(),
                                 .sequences = 1,
                                 .heads = 4,
                                 .kv_heads = 4,
                                 .head_size = 64,
                                 .q_rows = 256,
                                 .k_rows = 256,
                                 .max_q = 256,
                                 .max_k = 256,
                                 .q_stride = 768,
                                 .k_stride = 768,
                                 .v_stride = 768,
                                 .o_stride = 256,
                                 .causal = true,
                                 .scale = 0.125f});
       }},
      {"activation_gelu", "product", product, 0.14,
       [&b, ctx] {
         activation_forward(ctx, {.kind = ActivationKind::gelu_erf,
                                  .x = b.x.data(),
                                  .y = b.y.data(),
                                  .rows = kRows,
                                  .cols = kCols,
                                  .rng = {}});
       }},
      {"cross_entropy", "product", product, 0.7,
       [&b, ctx] {
         cross_entropy(ctx, {.logits = b.logits.data(),
                             .targets = b.targets.data(),
                             .loss = b.rows.data(),
                             .nll = b.more.data(),
                             .rows = kRows,
                             .vocab = Bench::kVocab,
                             .ld = Bench::kVocab,
                             .write_gradient = false});
       }},
      {"norm_forward", "copy", copy, 2.0,
       [&b, ctx] {
         norm_forward(ctx, {.x = b.x.data(),
                            .branch = b.z.data(),
                            .sum = b.sum.data(),
                            .weight = b.weight.data(),
                            .y = b.y.data(),
                            .mean = b.rows.data(),
                            .rstd = b.more.data(),
                            .rows = kRows,
                            .cols = kCols,
                            .rng = {}});
       }},
      {"adamw", "copy", copy, 6.6,
       [&b, ctx] {
         adamw(ctx, {.master = b.master.data(),
                     .m = b.m.data(),
                     .v = b.v.data(),
                     .grad = b.grad.data(),
                     .rules = b.rules.data(),
                     .ranges = kAll,
                     .weight_decay = 0.01f,
                     .schedule = {.kind = ScheduleKind::constant, .peak_lr = 1e-6f},
                     .state = &b.state});
       }},
      {"tokenizer", "sort", sort, 0.30, [&b] { b.ids.clear(), b.tokenizer.encode(b.text, b.ids); }},
      {"json_tokens", "sort", sort, 0.24, [&b] { b.read_json(); }},
      {"batches", "sort", sort, 0.68, [&b] { b.loader(); }},
  };
}

int run(const std::string& verb, int measurements) {
  set_cpu_threads(1);
  Bench bench;
  Yardsticks yardsticks;
  int wrong = 0;
  for (const Case& c : cases_of(bench)) {
    // Four times: limits were set on an EPYC, and on a Xeon some cases take less than half of theirs.
    const Work work = verb == "--prove"
                          ? Work([&c] {
                              for (int i = 0; i < 4; ++i) c.work();
                            })
                          : c.work;
    const Work& yardstick = yardsticks.*c.by;
    if (verb == "--spread") {
      std::vector<double> all;
      for (int i = 0; i < measurements; ++i) all.push_back(ratio_of(work, yardstick));
      std::sort(all.begin(), all.end());
      fmt::print("{:<20} by {:<8} least {:.4f}, median {:.4f}, largest {:.4f}, limit {}\n", c.name,
                 c.yardstick, all.front(), all[all.size() / 2], all.back(), c.limit);
      continue;
    }
    const bool want_slower = verb == "--prove";
    double ratio = ratio_of(work, yardstick);
    for (int again = 0; again < 2 && (ratio > c.limit) != want_slower; ++again)
      ratio = ratio_of(work, yardstick);
    const bool slower = ratio > c.limit;
    wrong += slower != want_slower;
    fmt::print(
        R"({{"what":"gate","case":"{}","yardstick":"{}","ratio":{:.4f},"limit":{},"slower":{}}})"
        "\n",
        c.name, c.yardstick, ratio, c.limit, slower);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace saturate::gate

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  try {
    return saturate::gate::run(verb, argc > 2 ? std::atoi(argv[2]) : 20);
  } catch (const saturate::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
