// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/moments.h"

#include <algorithm>

#include "base/error.h"
#include "base/half.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::TestContext;

// The maps as the paper describes them, in doubles.
template <int kFirst>
std::vector<double> published_map() {
  std::vector<double> values;
  for (int decade = 0; decade < 7; ++decade) {
    const int n = kFirst << decade;
    for (int k = 0; k < n; ++k) {
      const double low = 0.1 + 0.9 * k / n, high = 0.1 + 0.9 * (k + 1) / n;
      values.push_back(std::pow(10.0, decade - 6) * (low + high) / 2);
    }
  }
  values.push_back(1.0);
  return values;
}

template <class Map>
void expect_map(const float* table, const std::vector<double>& want) {
  ASSERT_EQ(want.size(), static_cast<size_t>(Map::kValues));
  for (int i = 0; i < Map::kValues; ++i)
    EXPECT_NEAR(table[i], want[static_cast<size_t>(i)], 1e-7 * want[static_cast<size_t>(i)]);
  for (int i = 0; i < Map::kValues; ++i) {
    const float below = std::nextafter(table[i], 0.0f);
    EXPECT_EQ(Map::below(table, table[i]), i);
    EXPECT_EQ(Map::below(table, below), i - 1);
  }
  EXPECT_EQ(Map::below(table, 1e-30f), -1);
}

TEST(Moments, MapsAreThePublishedOnes) {
  const MomentTables t = make_moment_tables();
  expect_map<SignedMap>(t.with_sign, published_map<1>());
  expect_map<PlainMap>(t.plain, published_map<2>());
}

TEST(Moments, EveryCodeReturnsFromItsValue) {
  const MomentTables t = make_moment_tables();
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    for (const uint32_t random : {0u, 0xFFFFu, kNearest}) {
      EXPECT_EQ(encode_signed(t.with_sign, decode_signed(t.with_sign, code), random), code);
      EXPECT_EQ(encode_plain(t.plain, decode_plain(t.plain, code), random), code);
    }
    // What a file holds is a rounded product with the scale.
    for (const float scale : {3.1e-5f, -7.7e-3f, 1e-38f}) {
      const float x = scale * decode_signed(t.with_sign, code),
                  y = std::fabs(scale) * decode_plain(t.plain, code);
      if (std::fabs(scale) < 1e-30f && c != 128 && c != 255) continue;  // subnormal
      EXPECT_EQ(encode_signed(t.with_sign, x / scale, kNearest), code) << scale;
      EXPECT_EQ(encode_plain(t.plain, y / std::fabs(scale), kNearest), code) << scale;
    }
  }
  for (const float bad : {NAN, -NAN, 0.0f, -0.0f}) {
    EXPECT_EQ(encode_signed(t.with_sign, bad, 1), 0);
    EXPECT_EQ(encode_plain(t.plain, bad, 1), 0);
  }
  EXPECT_EQ(encode_plain(t.plain, 1e-20f, 0xFFFF), 1) << "a second moment became zero";
  EXPECT_EQ(decode_signed(t.with_sign, encode_signed(t.with_sign, -1.0f, 0)), -t.with_sign[126]);
}

// A value between two neighbours gives them so often that their mean is the value.
TEST(Moments, RoundingIsOneOfTwoNeighboursAndUnbiased) {
  const MomentTables t = make_moment_tables();
  const auto expect_mean = [](const char* what, double x, double low, double high,
                              const auto& round) {
    double sum = 0;
    for (uint32_t r = 0; r < kNearest; ++r) {
      const double got = round(r);
      ASSERT_TRUE(got == low || got == high) << what << " of " << x << " is " << got;
      sum += got;
    }
    // 65,536 equal cases: the share is exact to one of them.
    EXPECT_NEAR(sum / kNearest, x, 2 * std::fabs(high - low) / kNearest) << what;
  };
  for (const float x : {0.51234f, 0.0123f, 3.3e-6f, 0.995f}) {
    const int i = SignedMap::below(t.with_sign, x), j = PlainMap::below(t.plain, x);
    expect_mean("signed", x, t.with_sign[i], t.with_sign[i + 1], [&](uint32_t r) {
      return decode_signed(t.with_sign, encode_signed(t.with_sign, x, r));
    });
    if (x < 0.99f) {
      expect_mean("negative", -x, -t.with_sign[i], -t.with_sign[i + 1], [&](uint32_t r) {
        return decode_signed(t.with_sign, encode_signed(t.with_sign, -x, r));
      });
    }
    expect_mean("plain", x, t.plain[j], t.plain[j + 1],
                [&](uint32_t r) { return decode_plain(t.plain, encode_plain(t.plain, x, r)); });
    const float low = decode_bf16(encode_bf16(x, 0)), high = decode_bf16(encode_bf16(x, 0xFFFF));
    EXPECT_LT(low, high);
    expect_mean("bf16", x, low, high, [&](uint32_t r) { return decode_bf16(encode_bf16(x, r)); });
    EXPECT_EQ(encode_bf16(x, kNearest), to_bf16(x).bits);
  }
  EXPECT_TRUE(std::isnan(decode_bf16(encode_bf16(NAN, 5))));
  EXPECT_EQ(decode_bf16(encode_bf16(-INFINITY, 0xFFFF)), -INFINITY);
}

TEST(Moments, TheExtremumKeepsItsSign) {
  EXPECT_EQ(extremum_of(std::max(extremum_key(3.0f), extremum_key(-4.0f))), -4.0f);
  EXPECT_EQ(extremum_of(std::max(extremum_key(3.5f), extremum_key(-3.0f))), 3.5f);
  EXPECT_EQ(extremum_of(std::max(extremum_key(2.0f), extremum_key(-2.0f))), -2.0f);
}

// Arrays of one group on a device, with moments of one type.
class Group {
 public:
  Group(const TestContext& t, MomentType type, DType wide, int64_t count, uint64_t parameter = 7)
      : t_(t), type_(type), wide_(wide), count_(count) {
    const auto n = static_cast<size_t>(count), pieces = n / static_cast<size_t>(kParameterAlign);
    const auto bytes =
        n * static_cast<size_t>(moment_bytes(type, static_cast<int64_t>(size_of(wide))));
    m_ = zeroed(t.stream, bytes);
    v_ = zeroed(t.stream, bytes);
    scales_ = zeroed(t.stream, 2 * pieces * sizeof(float));
    std::vector<PieceName> names(pieces);
    for (size_t i = 0; i < pieces; ++i)
      names[i] = {static_cast<uint32_t>(parameter), static_cast<uint32_t>(i)};
    names_ = Buffer(t.stream.device(), pieces * sizeof(PieceName));
    copy_to_device(t.stream, names_.data(), names.data(), names_.bytes());
    rules_ = zeroed(t.stream, pieces);
    t.stream.synchronize();
  }
  void step(const std::vector<OwnedRange>& ranges, void* master, const void* grad,
            const StepState* state, const AdamWArgs& rates) const {
    AdamWArgs args = rates;
    args.master = master;
    args.grad = grad;
    args.dtype = wide_;
    args.state = state;
    args.ranges = ranges;
    args.rules = rules_.as<DecayRule>();
    args.m = m_.data();
    args.v = v_.data();
    args.moments = type_;
    args.m_scales = scales_.as<float>();
    args.v_scales = scales_.as<float>() + count_ / kParameterAlign;
    args.pieces = names_.as<PieceName>();
    adamw(t_.get(), args);
    t_.stream.synchronize();
  }
  std::vector<double> m() const { return values(m_, true); }
  std::vector<double> v() const { return values(v_, false); }

 private:
  std::vector<double> values(const Buffer& array, bool first) const {
    std::vector<char> raw(array.bytes());
    std::vector<float> scales(scales_.bytes() / sizeof(float));
    copy_to_host(t_.stream, raw.data(), array.data(), raw.size());
    copy_to_host(t_.stream, scales.data(), scales_.data(), scales_.bytes());
    t_.stream.synchronize();
    const MomentTables tables = make_moment_tables();
    std::vector<double> out(static_cast<size_t>(count_));
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t block =
          i / static_cast<size_t>(kParameterAlign) + (first ? 0 : scales.size() / 2);
      const auto code = static_cast<uint8_t>(raw[i]);
      out[i] = type_ == MomentType::bf16
                   ? decode_bf16(reinterpret_cast<const uint16_t*>(raw.data())[i])
                   : scales[block] * (first ? decode_signed(tables.with_sign, code)
                                            : decode_plain(tables.plain, code));
    }
    return out;
  }

  const TestContext& t_;
  MomentType type_;
  DType wide_;
  int64_t count_;
  Buffer m_, v_, scales_, names_, rules_;
};

class RoundedMoments : public ::testing::TestWithParam<std::tuple<Device, MomentType>> {};
INSTANTIATE_TEST_SUITE_P(All, RoundedMoments,
                         ::testing::Combine(::testing::ValuesIn(testing::devices()),
                                            ::testing::Values(MomentType::bf16,
                                                              MomentType::blocks)),
                         [](const auto& i) {
                           return std::string(std::get<0>(i.param).is_cuda() ? "cuda" : "cpu") +
                                  (std::get<1>(i.param) == MomentType::bf16 ? "_bf16" : "_blocks");
                         });

// Each step against doubles that begin with the moments the step began with: weights as AdamW with
// moments in full says, moments no further off than the distance of neighbours on the map.
TEST_P(RoundedMoments, StepsAreThoseOfAdamWInDoubles) {
  const auto [device, type] = GetParam();
  const TestContext t(device);
  constexpr int64_t kCount = 5 * kParameterAlign;
  for (const DType wide :
       device.is_cuda() ? std::vector{DType::f32} : std::vector{DType::f32, DType::f64}) {
    const Group group(t, type, wide, kCount);
    const testing::Guarded master(t.stream, wide, testing::random_values(kCount, DType::f32, 1));
    const testing::Guarded grad(t.stream, wide, kCount);
    Buffer state(device, sizeof(StepState));
    constexpr double lr = 0.01f, b1 = 0.9f, b2 = 0.98f, eps = 1e-9f;
    for (int step = 0; step < 4; ++step) {
      auto g = testing::random_values(kCount, DType::f32, static_cast<uint64_t>(10 + step));
      for (size_t i = 0; i < 300; ++i) g[i] *= 1e-4;  // blocks with both small and large ones
      grad.set(g);
      StepState s;
      s.rng[0] = 42;
      s.step = s.updates = step;
      s.totals[2] = 1;
      s.grad_square_sum = 1;
      copy_to_device(t.stream, state.data(), &s, sizeof s);
      const auto w = master.values(), m = group.m(), v = group.v();
      group.step({{0, kCount, 0}}, master.data(), grad.data(), state.as<StepState>(),
                 {.schedule = {.kind = ScheduleKind::constant, .peak_lr = lr, .warmup_steps = 0}});
      const auto got_w = master.values(), got_m = group.m(), got_v = group.v();
      for (size_t block = 0; block < 5; ++block) {
        double m_most = 0, v_most = 0;
        std::vector<double> want_m(kParameterAlign), want_v(kParameterAlign);
        for (size_t k = 0; k < want_m.size(); ++k) {
          const size_t i = block * want_m.size() + k;
          want_m[k] = b1 * m[i] + (1 - b1) * g[i];
          want_v[k] = b2 * v[i] + (1 - b2) * g[i] * g[i];
          m_most = std::max(m_most, std::fabs(want_m[k]));
          v_most = std::max(v_most, want_v[k]);
          const double update = want_m[k] / (1 - std::pow(b1, step + 1)) /
                                (std::sqrt(want_v[k] / (1 - std::pow(b2, step + 1))) + eps);
          // A dozen roundings of numbers of the size of the update, and one of the weight.
          EXPECT_NEAR(got_w[i], w[i] - lr * update,
                      1.2e-7 * (std::fabs(w[i]) + lr * 20 * (1 + std::fabs(update))));
        }
        for (size_t k = 0; k < want_m.size(); ++k) {
          const size_t i = block * want_m.size() + k;
          // bf16 has 8 bits; of the maps the widest gaps are 0.9 / 64 of the extremum, 0.9 / 128.
          const double m_gap = type == MomentType::bf16 ? std::fabs(want_m[k]) / 128 : m_most / 64;
          const double v_gap = type == MomentType::bf16 ? want_v[k] / 128 : v_most / 128;
          EXPECT_NEAR(got_m[i], want_m[k], m_gap) << i;
          EXPECT_NEAR(got_v[i], want_v[k], v_gap) << i;
          // and inside a decade, relative to the value: a gap is at most 0.9 of the value's decade.
          EXPECT_NEAR(got_m[i], want_m[k], 1e-6 * m_most + std::fabs(want_m[k])) << i;
          EXPECT_GT(got_v[i], 0) << i;
        }
      }
    }
  }
}

// Changes far below half a unit in the last place add up: rounding to nearest would leave v where it
// was from some step on.
TEST_P(RoundedMoments, SmallChangesAreNotLost) {
  const auto [device, type] = GetParam();
  const TestContext t(device);
  constexpr int64_t kCount = 8 * kParameterAlign;
  const Group group(t, type, DType::f32, kCount);
  std::vector<double> g(kCount, 1.0), zero(kCount);
  // In blocks the scale is another element's, which stays at 1.7^2 from the first step on.
  const auto set_scale = [&](double value) {
    for (size_t i = 0; i < g.size(); i += kParameterAlign) g[i] = value;
  };
  set_scale(1.7 * std::sqrt(1000.0));
  const testing::Guarded master(t.stream, DType::f32, zero), grad(t.stream, DType::f32, g);
  Buffer state(device, sizeof(StepState));
  double want = 0;
  constexpr int kSteps = 1500;
  for (int step = 0; step < kSteps; ++step) {
    if (step == 1) {
      set_scale(1.7);
      grad.set(g);
    }
    StepState s;
    s.rng[0] = 3;
    s.step = s.updates = step;
    s.totals[2] = 1;
    s.grad_square_sum = 1;
    copy_to_device(t.stream, state.data(), &s, sizeof s);
    group.step({{0, kCount, 0}}, master.data(), grad.data(), state.as<StepState>(),
               {.beta2 = 0.999f,
                .schedule = {.kind = ScheduleKind::constant, .peak_lr = 0.0f, .warmup_steps = 0}});
    want = 0.999 * want + 0.001;
  }
  const auto v = group.v();
  double sum = 0;
  int64_t n = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    if (i % kParameterAlign == 0) continue;
    sum += v[i];
    ++n;
  }
  // A gap is 1/128, in blocks 0.02. Errors of the last 500 steps or so add up, each of half a gap at
  // most: 22 halves in the root of the mean square; of the mean of 2,040 elements 1/45 of that, 0.005.
  EXPECT_NEAR(sum / static_cast<double>(n), want, 0.01);
}

// Who owns what changes neither values nor random numbers.
TEST_P(RoundedMoments, RangesGiveWhatTheWholeGives) {
  const auto [device, type] = GetParam();
  const TestContext t(device);
  constexpr int64_t kCount = 6 * kParameterAlign, kHalf = kCount / 2;
  const auto w = testing::random_values(kCount, DType::f32, 1),
             g = testing::random_values(kCount, DType::f32, 2);
  const testing::Guarded grad(t.stream, DType::f32, g);
  Buffer state(device, sizeof(StepState));
  StepState s;
  s.rng[0] = 9;
  s.totals[2] = 1;
  s.grad_square_sum = 1;
  copy_to_device(t.stream, state.data(), &s, sizeof s);
  const auto run = [&](const std::vector<OwnedRange>& ranges, int64_t count) {
    const Group group(t, type, DType::f32, kCount);
    const testing::Guarded master(t.stream, DType::f32,
                                  std::vector<double>(w.end() - count, w.end()));
    group.step(ranges, master.data(), grad.data(), state.as<StepState>(), {});
    return std::pair{group.m(), group.v()};
  };
  const auto whole = run({{0, kCount, 0}}, kCount), back = run({{kHalf, kCount, 0}}, kHalf);
  for (size_t i = 0; i < static_cast<size_t>(kHalf); ++i) {
    EXPECT_EQ(back.first[i], whole.first[i + static_cast<size_t>(kHalf)]);
    EXPECT_EQ(back.second[i], whole.second[i + static_cast<size_t>(kHalf)]);
  }
}

TEST(Moments, RefusesRoundingWithoutNamesOrScales) {
  const TestContext t({});
  alignas(16) float x[256] = {};
  DecayRule rule = DecayRule::plain;
  PieceName name;
  StepState s;
  const OwnedRange one{0, 256, 0};
  AdamWArgs args{.master = x,
                 .m = x,
                 .v = x,
                 .grad = x,
                 .moments = MomentType::bf16,
                 .rules = &rule,
                 .ranges = {&one, 1},
                 .state = &s};
  EXPECT_THROW(adamw(t.get(), args), Error);
  args.moments = MomentType::blocks;
  args.pieces = &name;
  EXPECT_THROW(adamw(t.get(), args), Error);
}

}  // namespace
}  // namespace saturate::kernels
