// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adafactor.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;
using Values = std::vector<double>;

struct Rules {
  bool relative = false;
  float decay = 0, clip = 0, ema = 0;
};

// The arrays of one rank of `ranks`, which update a part of each tensor.
struct Rank {
  Rank(const TestContext& t, std::vector<AdafactorTensor> list, const Values& w, DType type,
       DType compute_type, const Rules& rules, int rank, int ranks)
      : tensors(std::move(list)),
        count(std::ssize(w)),
        factor_count(0),
        master(t.stream, type, w),
        grad(t.stream, type, w),
        ema(t.stream, type, w),
        compute(t.stream, compute_type, w),
        state(t.get().device, sizeof(StepState)) {
    for (AdafactorTensor& x : tensors) {
      x.begin = x.count() * rank / ranks;
      x.end = x.count() * (rank + 1) / ranks;
      factor_count += x.rows > 1 ? x.rows + x.cols : x.cols;
      if (x.rows > 1) args.widest = std::max(args.widest, x.cols);
    }
    const auto list_of_pieces = adafactor_pieces(tensors, args.partial_count);
    args.tensor_count = std::ssize(tensors);
    args.piece_count = std::ssize(list_of_pieces);
    args.factor_count = factor_count;
    const auto keep = [&](const void* from, size_t bytes) {
      buffers.emplace_back(t.get().device, bytes);
      if (from != nullptr) copy_to_device(t.stream, buffers.back().data(), from, bytes);
      t.stream.synchronize();
      return buffers.back().data();
    };
    args.tensors = static_cast<AdafactorTensor*>(
        keep(tensors.data(), tensors.size() * sizeof(AdafactorTensor)));
    args.pieces = static_cast<AdafactorPiece*>(
        keep(list_of_pieces.data(), list_of_pieces.size() * sizeof(AdafactorPiece)));
    args.sums = static_cast<double*>(keep(nullptr, sums_bytes()));
    args.totals = static_cast<double*>(keep(nullptr, totals_bytes()));
    args.scratch = keep(
        nullptr, adafactor_scratch_bytes(args.tensor_count, args.piece_count, args.partial_count));
    args.factors = keep(nullptr, static_cast<size_t>(factor_count) * size_of(type));
    fill_bytes(t.stream, args.factors, 0, buffers.back().bytes());
    args.master = master.data();
    args.grad = grad.data();
    args.ema = rules.ema > 0 ? ema.data() : nullptr;
    args.compute = compute_type == type ? nullptr : compute.data();
    args.dtype = type;
    args.compute_type = compute_type == type ? DType::bf16 : compute_type;
    args.relative = rules.relative;
    args.weight_decay = rules.decay;
    args.clip_norm = rules.clip;
    args.ema_decay = rules.ema;
    args.schedule = {.kind = ScheduleKind::constant, .peak_lr = 0.05f, .warmup_steps = 0};
    args.state = state.as<StepState>();
  }
  size_t sums_bytes() const { return static_cast<size_t>(factor_count) * sizeof(double); }
  size_t totals_bytes() const { return tensors.size() * 2 * sizeof(double); }

  std::vector<AdafactorTensor> tensors;
  int64_t count, factor_count;
  Guarded master, grad, ema, compute;
  Buffer state;
  std::vector<Buffer> buffers;
  AdafactorArgs args;
};

void add_up(const TestContext& t, std::vector<Rank>& ranks, double* AdafactorArgs::*array,
            size_t bytes) {
  Values sum(bytes / sizeof(double)), one(sum.size());
  for (const Rank& r : ranks) {
    copy_to_host(t.stream, one.data(), r.args.*array, bytes);
    t.stream.synchronize();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
  }
  for (const Rank& r : ranks) copy_to_device(t.stream, r.args.*array, sum.data(), bytes);
  t.stream.synchronize();
}

void step(const TestContext& t, std::vector<Rank>& ranks, const Values& g, const StepState& now) {
  for (Rank& r : ranks) {
    r.grad.set(g);
    copy_to_device(t.stream, r.state.data(), &now, sizeof now);
    adafactor_sums(t.get(), r.args);
  }
  add_up(t, ranks, &AdafactorArgs::sums, ranks[0].sums_bytes());
  for (const Rank& r : ranks) adafactor_measure(t.get(), r.args);
  add_up(t, ranks, &AdafactorArgs::totals, ranks[0].totals_bytes());
  for (const Rank& r : ranks) adafactor_apply(t.get(), r.args);
  t.stream.synchronize();
}

StepState state_at(int updates, double square_sum) {
  StepState s;
  s.step = s.updates = updates;
  s.totals[2] = 1;
  s.grad_square_sum = square_sum;
  return s;
}

// Algorithm 4 or 5 in doubles, one tensor.
struct Reference {
  int64_t rows, cols;
  Values w, row, col, ema;
  Reference(int64_t r, int64_t c, Values values)
      : rows(r),
        cols(c),
        w(std::move(values)),
        row(static_cast<size_t>(r)),
        col(static_cast<size_t>(c)),
        ema(w) {}
  void step(const Values& g, int t, const Rules& rules, bool decayed) {
    const double b = 1 - std::pow(t, -0.8), n = static_cast<double>(w.size());
    Values of_rows(row.size()), of_cols(col.size()), u(w.size());
    double square = 0, mean = 0, weights = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      of_rows[i / col.size()] += g[i] * g[i] / static_cast<double>(cols);
      of_cols[i % col.size()] += g[i] * g[i] / static_cast<double>(rows);
    }
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = b * row[i] + (1 - b) * (of_rows[i] + 1e-30);
      mean += row[i] / static_cast<double>(rows);
    }
    for (size_t i = 0; i < col.size(); ++i) col[i] = b * col[i] + (1 - b) * (of_cols[i] + 1e-30);
    for (size_t i = 0; i < g.size(); ++i) {
      const double v = col[i % col.size()] * (rows > 1 ? row[i / col.size()] / mean : 1);
      u[i] = g[i] / std::sqrt(v);
      square += u[i] * u[i];
      weights += w[i] * w[i];
    }
    const double size = 0.05f * (rules.relative ? std::max(1e-3, std::sqrt(weights / n)) : 1);
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] -= size * (u[i] / std::max(1.0, std::sqrt(square / n)) +
                      (decayed ? static_cast<double>(rules.decay) : 0) * w[i]);
      const double keep = std::min(static_cast<double>(rules.ema), (1.0 + t) / (10.0 + t));
      ema[i] = keep * ema[i] + (1 - keep) * w[i];
    }
  }
};

// A matrix of several pieces, a small one, a vector, a row and a column of a matrix's shape.
std::vector<AdafactorTensor> tensors_of() {
  std::vector<AdafactorTensor> list;
  int64_t at = 0, factors = 0;
  for (const auto& [rows, cols] : {std::pair{75, 41}, std::pair{2, 3}, std::pair{1, 300},
                                   std::pair{33, 1}, std::pair{32, 257}}) {
    list.push_back({.rows = rows,
                    .cols = cols,
                    .master = at,
                    .grad = at,
                    .compute = at,
                    .factors = factors,
                    .decay = list.size() % 2 == 0 ? DecayRule::decayed : DecayRule::plain});
    at += rows * cols;
    factors += rows > 1 ? rows + cols : cols;
  }
  return list;
}

void compare(Device device, DType type, DType compute, const Rules& rules, int rank_count) {
  const TestContext t(device);
  const std::vector<AdafactorTensor> tensors = tensors_of();
  const int64_t count = tensors.back().master + tensors.back().count();
  const Values start = testing::random_values(count, DType::f32, 1);
  std::vector<Rank> ranks;
  for (int r = 0; r < rank_count; ++r)
    ranks.emplace_back(t, tensors, start, type, compute, rules, r, rank_count);
  std::vector<Reference> want;
  for (const AdafactorTensor& x : tensors)
    want.emplace_back(x.rows, x.cols,
                      Values(start.begin() + x.master, start.begin() + x.master + x.count()));
  int updates = 0;
  for (int i = 0; i < 4; ++i) {
    const Values g = testing::random_values(count, DType::f32, static_cast<uint64_t>(7 + i));
    const bool bad = i == 2;
    const double factor = rules.clip > 0 ? 0.5 : 1;  // of the norm below
    step(t, ranks, g, state_at(updates, bad ? static_cast<double>(INFINITY) : 16.0));
    if (bad) continue;  // as if it had not been
    ++updates;
    for (size_t k = 0; k < want.size(); ++k) {
      Values part(g.begin() + tensors[k].grad, g.begin() + tensors[k].grad + tensors[k].count());
      for (double& v : part) v *= factor;
      want[k].step(part, updates, rules, tensors[k].decay == DecayRule::decayed);
    }
  }
  // u is rounded a few times, and its root's argument; w at its own size; each update once.
  const double bound = updates * epsilon_of(type) * (8 * 0.05 * 4 + 4);
  for (const Rank& r : ranks) {
    const Values w = r.master.values(), ema = r.ema.values(), copy = r.compute.values();
    for (size_t k = 0; k < want.size(); ++k) {
      const AdafactorTensor& x = r.tensors[k];
      for (int64_t e = 0; e < x.count(); ++e) {
        const auto at = static_cast<size_t>(x.master + e), i = static_cast<size_t>(e);
        if (e < x.begin || e >= x.end) {
          ASSERT_EQ(w[at], start[at]);
          continue;
        }
        ASSERT_NEAR(w[at], want[k].w[i], bound * (1 + std::fabs(w[at]))) << k << " " << e;
        if (rules.ema > 0) {
          ASSERT_NEAR(ema[at], want[k].ema[i], bound * (1 + std::fabs(w[at])));
        }
        if (compute != type) {
          ASSERT_EQ(copy[at], testing::value_of(testing::bits_of(w[at], compute), compute));
        }
      }
    }
    r.master.bytes(), r.ema.bytes(), r.compute.bytes();  // check the guards
  }
}

const Rules kRules[] = {
    {}, {.relative = true, .decay = 0.1f}, {.decay = 0.2f, .clip = 2, .ema = 0.5f}};

TEST(Adafactor, MatchesThePublishedStepInDoublesOnCpu) {
  for (const Rules& rules : kRules) compare({}, DType::f64, DType::f64, rules, 1);
  for (const int ranks : {1, 3}) compare({}, DType::f32, DType::f32, kRules[2], ranks);
  compare({}, DType::f32, DType::bf16, kRules[2], 1);
}
TEST(Adafactor, MatchesThePublishedStepInDoublesOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const Rules& rules : kRules)
    for (const DType compute : {DType::f32, DType::bf16, DType::f16})
      for (const int ranks : {1, 3})
        compare({DeviceKind::cuda, 0}, DType::f32, compute, rules, ranks);
}

// Three steps of transformers.Adafactor in doubles (lr = 0.0625, relative_step = False, scale_parameter and
// weight_decay as named).
TEST(Adafactor, StepsAsTransformersDoes) {
  const auto value = [](int64_t i, double s) { return std::sin(0.7 * static_cast<double>(i) + s); };
  struct Case {
    Rules rules;
    int64_t rows, cols;
    Values want;
  };
  const Case cases[] = {
      {{.relative = true, .decay = 0.125f},
       3,
       4,
       {0.250410915706, 0.312499012309, 0.292871059421, 0.018400265617, -0.176401482253,
        -0.315845900287, -0.266109284057, -0.148587177858, 0.070131529346, 0.253653050455,
        0.304822773827, 0.246887193211}},
      {{},
       3,
       4,
       {0.2490997077, 0.370124648375, 0.610982523652, 0.039422241524, -0.154341791623,
        -0.398186995162, -0.27598183561, -0.278031199829, -0.010292508092, 0.254382716327,
        0.338360744171, 0.417519995501}},
      {{.relative = true},
       1,
       5,
       {0.251096553861, 0.316058646227, 0.24622979949, 0.042921987821, -0.172238380719}}};
  for (const Case& c : cases) {
    const TestContext t({});
    const int64_t count = c.rows * c.cols;
    Values w;
    for (int64_t i = 0; i < count; ++i) w.push_back(0.3 * value(i, 1.0));
    std::vector<Rank> rank;
    rank.emplace_back(
        t,
        std::vector<AdafactorTensor>{{.rows = c.rows, .cols = c.cols, .decay = DecayRule::decayed}},
        w, DType::f64, DType::f64, c.rules, 0, 1);
    rank[0].args.schedule.peak_lr = 0.0625f;
    for (int s = 0; s < 3; ++s) {
      Values g;
      for (int64_t i = 0; i < count; ++i)
        g.push_back(value(i, 2.0 + s) * (0.1 + static_cast<double>(i % 3)));
      step(t, rank, g, state_at(s, 1.0));
    }
    const Values got = rank[0].master.values();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], c.want[i], 1e-11) << i;
  }
}

TEST(AdafactorRules, RejectsWhatIsMissing) {
  const TestContext t({});
  AdafactorArgs args{.tensor_count = 1};
  EXPECT_THROW(adafactor_sums(t.get(), args), Error);
  args.tensor_count = -1;
  EXPECT_THROW(adafactor_apply(t.get(), args), Error);
}

}  // namespace
}  // namespace saturate::kernels
