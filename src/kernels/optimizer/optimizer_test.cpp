// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/optimizer.h"

#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

constexpr DType f32 = DType::f32, f64 = DType::f64, bf16 = DType::bf16, f16 = DType::f16;

// A StepState in device memory.
class State {
 public:
  explicit State(const TestContext& t) : t_(&t), memory_(t.stream.device(), sizeof(StepState)) {}
  StepState* device() const { return memory_.as<StepState>(); }
  void set(const StepState& s) const {
    copy_to_device(t_->stream, memory_.data(), &s, sizeof(s));
    t_->stream.synchronize();
  }
  StepState get() const {
    StepState s;
    copy_to_host(t_->stream, &s, memory_.data(), sizeof(s));
    t_->stream.synchronize();
    return s;
  }

 private:
  const TestContext* t_;
  Buffer memory_;
};

// One range from the start to the end of a group.
std::vector<OwnedRange> whole(int64_t count) { return {{0, count, 0}}; }

void norm(const TestContext& t, const GradientNormArgs& args) {
  gradient_norm_blocks(t.get(), args);
  gradient_norm_join(t.get(), args);
}

std::vector<DType> wide_types(Device device) {
  return device.is_cuda() ? std::vector{f32} : std::vector{f32, f64};
}

TEST(GradientNorm, SumsSquaresInAFixedOrder) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const State state(t);
    for (const DType type : wide_types(device)) {
      for (const int64_t count :
           {int64_t{0}, int64_t{256}, int64_t{4096 + 256}, int64_t{1} << 20, int64_t{4197120}}) {
        auto values = testing::random_values(count, f32, static_cast<uint64_t>(count));
        if (count > 256) values[77] = static_cast<double>(1e30f);  // its square is beyond float
        const Guarded grad(t.stream, type, values);
        const Guarded partial(t.stream, f64, norm_blocks(count));
        double want = 0;
        for (const double v : values) want += v * v;
        state.set({});
        const auto ranges = whole(count);
        const GradientNormArgs args{.grad = grad.data(),
                                    .dtype = type,
                                    .count = count,
                                    .ranges = ranges,
                                    .partial = partial.as<double>(),
                                    .state = state.device()};
        norm(t, args);
        const double first = state.get().grad_square_sum;
        EXPECT_NEAR(first, want, epsilon_of(f64) * std::sqrt(static_cast<double>(count)) * want);
        norm(t, args);
        EXPECT_EQ(state.get().grad_square_sum, first);
        partial.bytes();  // checks the guards
      }
    }
  }
}

// What 1 to 7 ranks write adds up to what one writes, to the last bit, and each leaves the blocks
// of the others at zero. Ranges end inside the last block only.
TEST(GradientNorm, DoesNotDependOnWhoHoldsIt) {
  constexpr int64_t kCount = 131 * kNormBlock + 3 * kParameterAlign;
  const int64_t blocks = norm_blocks(kCount);
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const State state(t);
    const Guarded grad(t.stream, f32, testing::random_values(kCount, f32, 5));
    const Guarded partial(t.stream, f64, blocks);
    const auto alone = whole(kCount);
    GradientNormArgs args{.grad = grad.data(),
                          .count = kCount,
                          .ranges = alone,
                          .partial = partial.as<double>(),
                          .state = state.device()};
    norm(t, args);
    const double want = state.get().grad_square_sum;
    for (const int64_t ranks : {1, 2, 4, 7}) {
      std::vector<double> sum(static_cast<size_t>(blocks));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        // With one rank more ranges than one launch takes.
        std::vector<OwnedRange> mine;
        const int64_t step = ranks == 1 ? 1 : 2;
        for (int64_t b = rank * step; b < blocks; b += ranks * step)
          mine.push_back({b * kNormBlock, std::min((b + step) * kNormBlock, kCount), 0});
        args.ranges = mine;
        gradient_norm_blocks(t.get(), args);
        const auto got = partial.values();
        for (size_t b = 0; b < sum.size(); ++b) {
          const bool own = static_cast<int64_t>(b) / step % ranks == rank;
          EXPECT_EQ(got[b] != 0, own) << "block " << b << " of rank " << rank;
          sum[b] += got[b];
        }
      }
      partial.set(sum);
      gradient_norm_join(t.get(), args);
      EXPECT_EQ(state.get().grad_square_sum, want) << ranks << " ranks";
    }
  }
}

TEST(GradientNorm, ShowsInfinityAndNan) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const State state(t);
    for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      auto values = testing::random_values(20480, f32, 1);
      values[20479] = bad;
      const Guarded grad(t.stream, f32, values), partial(t.stream, f64, norm_blocks(20480));
      const auto ranges = whole(20480);
      norm(t, {.grad = grad.data(),
               .count = 20480,
               .ranges = ranges,
               .partial = partial.as<double>(),
               .state = state.device()});
      EXPECT_FALSE(std::isfinite(state.get().grad_square_sum));
    }
  }
}

struct Case {
  const char* name;
  int64_t count;
  DType type;     // of the arrays
  DType compute;  // the same: none
  float clip, ema, weight_decay;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class AdamW : public ::testing::TestWithParam<Case> {
 protected:
  // Several whole steps (norm, update, finish), one of them with an infinite gradient, against
  // doubles.
  static void run(Device device) {
    const Case c = GetParam();
    const TestContext t(device);
    const State state(t);
    StepState start;
    start.loss_scale = 512.0f;
    state.set(start);
    const auto n = static_cast<size_t>(c.count);
    std::vector<double> w = testing::random_values(c.count, f32, 1), m(n), v(n), ema = w,
                        decay(n / kParameterAlign);
    std::vector<DecayRule> rules(decay.size());
    for (size_t i = 0; i < decay.size(); ++i) {
      decay[i] = i % 3 != 1;
      rules[i] = i % 3 != 1 ? DecayRule::decayed : DecayRule::plain;
    }
    const Guarded d_w(t.stream, c.type, w), d_m(t.stream, c.type, m), d_v(t.stream, c.type, v),
        d_ema(t.stream, c.type, ema);
    const bool copies = c.compute != c.type;
    const DType half = copies ? c.compute : bf16;
    const Guarded d_compute(t.stream, half, c.count), grad(t.stream, c.type, c.count);
    const Guarded partial(t.stream, f64, norm_blocks(c.count));
    const auto ranges = whole(c.count);
    Buffer d_rules(device, rules.size());
    copy_to_device(t.stream, d_rules.data(), rules.data(), rules.size());
    HostBuffer ring(device, sizeof(StepRecord) * 4);
    const Schedule schedule{
        .kind = ScheduleKind::cosine, .peak_lr = 0.01f, .warmup_steps = 2, .total_steps = 9};
    const float budget = 100.0f;
    const AdamWArgs args{.master = d_w.data(),
                         .m = d_m.data(),
                         .v = d_v.data(),
                         .grad = grad.data(),
                         .ema = c.ema > 0 ? d_ema.data() : nullptr,
                         .compute = copies ? d_compute.data() : nullptr,
                         .dtype = c.type,
                         .compute_type = half,
                         .rules = d_rules.as<DecayRule>(),
                         .ranges = ranges,
                         .weight_decay = c.weight_decay,
                         .clip_norm = c.clip,
                         .ema_decay = c.ema,
                         .token_budget = budget,
                         .schedule = schedule,
                         .state = state.device()};
    int updates = 0;
    double scale = start.loss_scale;
    for (int step = 1; step <= 6; ++step) {
      const bool bad = step == 3;
      auto g = testing::random_values(c.count, f32, 100 + step, 3.0);
      if (bad) g[n / 2] = INFINITY;
      grad.set(g);
      StepState now = state.get();
      now.totals[0] = 7.0 * step;
      now.totals[1] = 5.0 * step;
      now.totals[2] = 80.0 + step;
      state.set(now);
      norm(t, {.grad = grad.data(),
               .dtype = c.type,
               .count = c.count,
               .ranges = ranges,
               .partial = partial.as<double>(),
               .state = state.device()});
      adamw(t.get(), args);
      finish_step(t.get(), {.state = state.device(),
                            .ring = ring.as<StepRecord>(),
                            .ring_slots = 4,
                            .schedule = schedule,
                            .token_budget = budget,
                            .dynamic_loss_scale = true,
                            .growth_interval = 2});
      t.stream.synchronize();

      const double unscale = budget / (scale * (80.0 + step)), lr = learning_rate(schedule, step);
      double length = 0;
      for (const double x : g) length += x * x;
      length = unscale * std::sqrt(length);
      const StepRecord& record = ring.as<StepRecord>()[(step - 1) % 4];
      EXPECT_EQ(record.sequence, static_cast<uint64_t>(step));
      EXPECT_EQ(record.step, step);
      EXPECT_EQ(record.loss_sum, 7.0 * step);
      EXPECT_EQ(record.nll_sum, 5.0 * step);
      EXPECT_EQ(record.target_tokens, 80.0 + step);
      EXPECT_EQ(record.lr, learning_rate(schedule, step));
      EXPECT_EQ(record.loss_scale, static_cast<float>(scale));
      EXPECT_EQ(record.skipped, bad ? 1 : 0);
      EXPECT_EQ(record.bad_steps_in_row, bad ? 1 : 0);
      if (!bad) {
        EXPECT_NEAR(record.grad_norm, length, 1e-6 * length);
        ++updates;
        const double clip = c.clip > 0 && length > c.clip ? c.clip / length : 1.0;
        const double b1 = 0.9f, b2 = 0.98f,
                     ema_t = std::min<double>(c.ema, (1.0 + updates) / (10.0 + updates));
        for (size_t i = 0; i < n; ++i) {
          const double x = g[i] * unscale * clip;
          m[i] = b1 * m[i] + (1 - b1) * x;
          v[i] = b2 * v[i] + (1 - b2) * x * x;
          const double mean = m[i] / (1 - std::pow(b1, updates)),
                       square = v[i] / (1 - std::pow(b2, updates));
          w[i] -= lr * (mean / (std::sqrt(square) + 1e-9f) +
                        c.weight_decay * decay[i / kParameterAlign] * w[i]);
          ema[i] = ema_t * ema[i] + (1 - ema_t) * w[i];
        }
      }
      // The scale halves after the bad step 3 and doubles after two good ones: after 2, 5.
      scale *= step == 3 ? 0.5 : (step == 2 || step == 5 ? 2.0 : 1.0);
      const StepState after = state.get();
      EXPECT_EQ(after.loss_scale, static_cast<float>(scale)) << "step " << step;
      EXPECT_EQ(after.step, step);
      EXPECT_EQ(after.updates, updates);
      EXPECT_EQ(after.totals[0] + after.totals[1] + after.totals[2], 0.0);
      EXPECT_EQ(after.lr, learning_rate(schedule, step));

      // Each step rounds w at its size, m and v at theirs; the update is lr times numbers near 1,
      // rounded a dozen times.
      const double eps = epsilon_of(c.type);
      const auto got_w = d_w.values(), got_m = d_m.values(), got_v = d_v.values(),
                 got_ema = d_ema.values();
      const auto got_compute = d_compute.values();
      for (size_t i = 0; i < n; ++i) {
        const double w_bound = step * eps * (std::fabs(w[i]) + 0.01 * 40);
        // m mixes gradients of both signs, so its error is that of the largest term.
        const double g_bound = 6 * 3.0 * unscale * 4;
        ASSERT_NEAR(got_w[i], w[i], w_bound) << "w " << i << " step " << step;
        ASSERT_NEAR(got_m[i], m[i], step * 4 * eps * g_bound) << "m " << i << " step " << step;
        ASSERT_NEAR(got_v[i], v[i], step * 8 * eps * v[i]) << "v " << i << " step " << step;
        if (c.ema > 0) {
          ASSERT_NEAR(got_ema[i], ema[i], 2 * w_bound) << "ema " << i;
        }
        if (copies && updates > 0) {
          ASSERT_EQ(got_compute[i], testing::value_of(testing::bits_of(got_w[i], half), half)) << i;
        }
      }
    }
  }
};

TEST_P(AdamW, MatchesDoublesOverStepsOnCpu) { run({}); }
TEST_P(AdamW, MatchesDoublesOverStepsOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  if (GetParam().type == f64) GTEST_SKIP() << "f64 is for the CPU";
  run({DeviceKind::cuda, 0});
}
INSTANTIATE_TEST_SUITE_P(Cases, AdamW,
                         ::testing::Values(Case{"plain", 256, f32, f32, 0.0f, 0.0f, 0.0f},
                                           Case{"decay_clip", 2304, f32, bf16, 0.5f, 0.0f, 0.1f},
                                           Case{"ema", 7936, f32, f16, 0.0f, 0.95f, 0.01f},
                                           Case{"f64", 2304, f64, f64, 0.5f, 0.95f, 0.1f},
                                           Case{"many", 256 * 301, f32, bf16, 1000.0f, 0.9f, 0.1f}),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(AdamWRules, AStepWithoutTokensOrWithBadGradientsWritesNothing) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const State state(t);
    const Guarded w(t.stream, f32, int64_t{256}), m(t.stream, f32, int64_t{256}),
        v(t.stream, f32, int64_t{256});
    const Guarded grad(t.stream, f32, testing::random_values(256, f32, 1)),
        compute(t.stream, bf16, int64_t{256});
    Buffer rules(device, 1);
    fill_bytes(t.stream, rules.data(), static_cast<int>(DecayRule::decayed), 1);
    const auto ranges = whole(256);
    for (const double sum : {1.0, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      StepState s;
      s.grad_square_sum = sum;
      s.totals[2] = sum == 1.0 ? 0 : 5;
      state.set(s);
      adamw(t.get(), {.master = w.data(),
                      .m = m.data(),
                      .v = v.data(),
                      .grad = grad.data(),
                      .compute = compute.data(),
                      .rules = rules.as<DecayRule>(),
                      .ranges = ranges,
                      .state = state.device()});
      for (const Guarded* a : {&w, &m, &v, &compute}) {
        for (const char byte : a->bytes()) ASSERT_EQ(byte, '\xFF');
      }
    }
  }
}

// Ranks that hold the optimizer's arrays of their own ranges alone write together what one rank
// with everything writes, bit for bit.
TEST(AdamWRules, RangesGiveWhatTheWholeGives) {
  constexpr int64_t kPieces = 143, kCount = kPieces * kParameterAlign;
  const auto n = static_cast<size_t>(kCount);
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const State state(t);
    StepState s;
    s.grad_square_sum = 9.0;
    s.totals[2] = 5;
    state.set(s);
    std::vector<DecayRule> rules(kPieces);
    for (size_t i = 0; i < rules.size(); ++i)
      rules[i] = i % 3 == 1 ? DecayRule::decayed : DecayRule::plain;
    Buffer d_rules(device, rules.size());
    copy_to_device(t.stream, d_rules.data(), rules.data(), rules.size());
    const auto start = testing::random_values(kCount, f32, 1);
    const Guarded grad(t.stream, f32, testing::random_values(kCount, f32, 3));
    for (const DType type : wide_types(device)) {
      const Guarded d_grad(t.stream, type, grad.values());
      // The arrays {master, m, v, average, compute} after a step over `ranges` of `count` elements.
      const auto step = [&](const std::vector<OwnedRange>& ranges, int64_t count) {
        std::vector<double> own(static_cast<size_t>(count));
        for (const OwnedRange& r : ranges)
          std::copy(start.begin() + r.begin, start.begin() + r.end, own.begin() + r.local);
        const Guarded w(t.stream, type, own), ema(t.stream, type, own);
        const Guarded m(t.stream, type, std::vector<double>(own.size())),
            v(t.stream, type, std::vector<double>(own.size())), compute(t.stream, bf16, kCount);
        adamw(t.get(), {.master = w.data(),
                        .m = m.data(),
                        .v = v.data(),
                        .grad = d_grad.data(),
                        .ema = ema.data(),
                        .compute = compute.data(),
                        .dtype = type,
                        .rules = d_rules.as<DecayRule>(),
                        .ranges = ranges,
                        .weight_decay = 0.1f,
                        .clip_norm = 1.0f,
                        .ema_decay = 0.9f,
                        .schedule = {.kind = ScheduleKind::constant, .peak_lr = 0.1f},
                        .state = state.device()});
        return std::vector{w.values(), m.values(), v.values(), ema.values(), compute.values()};
      };
      const auto want = step(whole(kCount), kCount);
      for (const int64_t ranks : {2, 4, 7}) {
        auto got = std::vector(5, std::vector<double>(n));
        for (int64_t rank = 0; rank < ranks; ++rank) {
          std::vector<OwnedRange> mine;
          int64_t held = 0;
          // Pieces of 1 to 3: neighbours that are not adjacent in the group are so in the arrays.
          for (int64_t p = 0; p < kPieces;) {
            const int64_t end = std::min(p + 1 + p % 3, kPieces),
                          length = (end - p) * kParameterAlign;
            if (p % ranks == rank) {
              mine.push_back({p * kParameterAlign, end * kParameterAlign, held});
              held += length;
            }
            p = end;
          }
          if (mine.empty()) continue;
          const auto part = step(mine, held);
          for (const OwnedRange& r : mine) {
            for (size_t a = 0; a < 5; ++a) {
              const int64_t from = a == 4 ? r.begin : r.local;
              std::copy_n(part[a].begin() + from, r.end - r.begin, got[a].begin() + r.begin);
            }
          }
        }
        for (size_t a = 0; a < 5; ++a) ASSERT_EQ(got[a], want[a]) << ranks << " ranks, array " << a;
      }
    }
  }
}

TEST(FinishStep, KeepsTheLossScaleWithinItsBounds) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const State state(t);
    HostBuffer ring(device, sizeof(StepRecord));
    FinishStepArgs args{.state = state.device(), .ring = ring.as<StepRecord>(), .ring_slots = 1};
    args.dynamic_loss_scale = true;
    args.growth_interval = 1;
    const auto scale_after = [&](float scale, double square_sum) {
      StepState s;
      s.loss_scale = scale;
      s.totals[2] = 1;
      s.grad_square_sum = square_sum;
      s.bad_steps_in_row = 3;
      state.set(s);
      finish_step(t.get(), args);
      const StepState after = state.get();
      EXPECT_EQ(after.bad_steps_in_row, std::isfinite(square_sum) ? 0 : 4);
      EXPECT_EQ(ring.as<StepRecord>()->bad_steps_in_row, after.bad_steps_in_row);
      return after.loss_scale;
    };
    EXPECT_EQ(scale_after(0x1p24f, 1.0), 0x1p24f);
    EXPECT_EQ(scale_after(0x1p23f, 1.0), 0x1p24f);
    EXPECT_EQ(scale_after(0x1p-16f, INFINITY), 0x1p-16f);
    EXPECT_EQ(scale_after(1.0f, NAN), 0.5f);
    args.growth_interval = 2;
    EXPECT_EQ(scale_after(4.0f, 1.0), 4.0f);
    args.dynamic_loss_scale = false;
    EXPECT_EQ(scale_after(1.0f, NAN), 1.0f);
  }
}

TEST(BatchIntake, WalksTheSlotsAndCounts) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const State state(t);
    for (const int64_t words : {int64_t{1}, int64_t{1027}, int64_t{64 * 5000}}) {
      std::vector<Guarded> slots;
      std::vector<std::vector<double>> content;
      std::vector<const void*> addresses;
      for (int slot = 0; slot < 3; ++slot) {
        std::vector<double> values(static_cast<size_t>(words));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 3) + slot;
        slots.emplace_back(t.stream, DType::i32, values);
        content.push_back(values);
        addresses.push_back(slots.back().data());
      }
      Buffer pointers(device, sizeof(void*) * 3);
      copy_to_device(t.stream, pointers.data(), addresses.data(), sizeof(void*) * 3);
      StepState s;
      s.rng[0] = 99;
      s.rng[1] = 4;
      state.set(s);
      for (const size_t expected : {1, 2, 0, 1}) {
        const Guarded dst(t.stream, DType::i32, words);
        batch_intake(t.get(), {.slots = pointers.as<const int32_t*>(),
                               .slot_count = 3,
                               .dst = dst.as<int32_t>(),
                               .words = words,
                               .state = state.device()});
        EXPECT_EQ(dst.values(), content[expected]);
      }
      EXPECT_EQ(state.get().rng[1], 8u);
      EXPECT_EQ(state.get().rng[0], 99u);
    }
  }
}

// One rank and two ranks take the same micro-batches and count them alike: in masks rank 1 of 2 is
// in its second micro-step where one rank is in its fourth.
TEST(BatchIntake, CountsMicroBatchesOverAllRanks) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const State state(t);
    const Guarded slot(t.stream, DType::i32, std::vector<double>{7});
    const Guarded dst(t.stream, DType::i32, 1);
    const void* address = slot.data();
    Buffer pointers(device, sizeof(void*));
    copy_to_device(t.stream, pointers.data(), &address, sizeof(void*));
    for (const int64_t ranks : {1, 2, 3}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto n = static_cast<uint64_t>(ranks), d = static_cast<uint64_t>(rank);
        StepState s;
        s.rng[1] = micro_batch_counter(0, d, n);
        EXPECT_EQ(micro_batches_taken(s.rng[1], d, n), 0u);
        state.set(s);
        for (uint64_t taken = 1; taken < 5; ++taken) {
          batch_intake(t.get(), {.slots = pointers.as<const int32_t*>(),
                                 .slot_count = 1,
                                 .dst = dst.as<int32_t>(),
                                 .words = 1,
                                 .rank = rank,
                                 .ranks = ranks,
                                 .state = state.device()});
          EXPECT_EQ(state.get().rng[1], (taken - 1) * n + d + 1);
          EXPECT_EQ(state.get().rng[1], micro_batch_counter(taken, d, n));
          EXPECT_EQ(micro_batches_taken(state.get().rng[1], d, n), taken);
        }
      }
    }
  }
}

TEST(OptimizerRules, RejectsBadArguments) {
  const TestContext t({});
  alignas(16) float x[512] = {};
  alignas(16) double partial[2] = {};
  DecayRule rules[2] = {};
  StepState s;
  const std::vector<OwnedRange> one = whole(256), cut = {{0, 255, 0}},
                                back = {{256, 512, 0}, {0, 256, 0}};
  AdamWArgs ok{.master = x, .m = x, .v = x, .grad = x, .rules = rules, .ranges = one, .state = &s};
  AdamWArgs bad = ok;
  for (const auto* ranges : {&cut, &back}) {
    bad.ranges = *ranges;
    EXPECT_THROW(adamw(t.get(), bad), Error);
  }
  bad = ok;
  bad.master = x + 1;
  EXPECT_THROW(adamw(t.get(), bad), Error);
  bad = ok;
  bad.dtype = bf16;
  EXPECT_THROW(adamw(t.get(), bad), Error);
  bad = ok;
  bad.compute = x;
  bad.compute_type = f32;
  EXPECT_THROW(adamw(t.get(), bad), Error);
  // 256 elements are not a whole block, unless the group ends there.
  GradientNormArgs norm{.grad = x, .count = 256, .ranges = one, .partial = partial, .state = &s};
  gradient_norm_blocks(t.get(), norm);
  norm.count = 512;
  EXPECT_THROW(gradient_norm_blocks(t.get(), norm), Error);
  norm.count = 255;
  EXPECT_THROW(gradient_norm_join(t.get(), norm), Error);
  norm.count = 256;
  norm.dtype = bf16;
  EXPECT_THROW(gradient_norm_blocks(t.get(), norm), Error);
  StepRecord record;
  EXPECT_THROW(finish_step(t.get(), {.state = &s, .ring = &record}), Error);
  EXPECT_THROW(batch_intake(t.get(), {}), Error);
}

TEST(OptimizerRules, RefusesDoublesOnTheGpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const Buffer memory(t.stream.device(), 4096);
  const auto ranges = whole(256);
  EXPECT_THROW(gradient_norm_blocks(t.get(), {.grad = memory.data(),
                                              .dtype = f64,
                                              .count = 256,
                                              .ranges = ranges,
                                              .partial = memory.as<double>(),
                                              .state = memory.as<StepState>()}),
               Error);
}

}  // namespace
}  // namespace saturate::kernels
