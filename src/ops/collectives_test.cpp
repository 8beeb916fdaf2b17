// SPDX-License-Identifier: Apache-2.0
// Layouts on lockstep ranks, in f64, against one rank: values, every gradient, and what is noticed
// when a rule is broken.
#include "ops/collectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "ops/activation.h"
#include "ops/context_attention.h"
#include "ops/cross_entropy.h"
#include "ops/linear.h"
#include "ops/linear_ranks.h"
#include "ops/residual_norm.h"
#include "parallel/lockstep.h"
#include "parallel/mesh.h"

namespace saturate::ops {
namespace {

using parallel::Collective;
using parallel::Communicator;
using parallel::Mesh;
using parallel::ShardSpec;
using enum parallel::MeshAxis;
using Axes = std::vector<parallel::MeshAxis>;
using Doubles = std::vector<double>;
using Lists = std::vector<std::vector<Collective>>;

constexpr int64_t kRows = 24, kWidth = 6, kInner = 16, kVocab = 5;
constexpr double kClose = 1e-12;

// What a rank knows at the end: the loss of its rows, and the gradients of its parts of parameters.
struct Share {
  int64_t first_row = 0;
  Doubles nll;
  struct Part {
    std::vector<parallel::ShardRun> runs;
    Doubles gradient;
  };
  std::map<std::string, Part> parts;
};

// Largest difference of any rank's values and gradients from those of one rank, each gradient
// relative to its own norm.
double difference(const std::vector<Share>& ranks, const Share& one) {
  double worst = 0;
  for (const Share& share : ranks) {
    for (size_t i = 0; i < share.nll.size(); ++i)
      worst = std::max(worst,
                       std::fabs(share.nll[i] - one.nll[static_cast<size_t>(share.first_row) + i]));
    for (const auto& [name, part] : share.parts) {
      const Doubles& whole = one.parts.at(name).gradient;
      double norm = 0;
      for (const double g : whole) norm += g * g;
      EXPECT_GT(norm, 0) << name;
      auto mine = part.gradient.begin();
      for (const parallel::ShardRun& run : part.runs)
        for (int64_t e = run.global_offset; e < run.global_offset + run.length; ++e)
          worst =
              std::max(worst, std::fabs(*mine++ - whole[static_cast<size_t>(e)]) / std::sqrt(norm));
    }
  }
  return worst;
}

// A small model on one rank of a mesh: parts of parameters whose values are a function of the name
// and of the place in the whole, and the batch, of which it takes `rows` from `first_row`.
class Model {
 public:
  Model(Communicator& communicator, const parallel::MeshExtents& extents)
      : communicator_(communicator), mesh_(communicator.size(), extents) {}

  const Mesh& mesh() const { return mesh_; }
  int at(parallel::MeshAxis axis) const { return mesh_.coordinate(axis, communicator_.rank()); }
  GroupOfRanks over(const Axes& axes) {
    return {&communicator_, communicator_.make_group(mesh_.group(axes, communicator_.rank()))};
  }

  ParameterId add(const char* name, int64_t rows, int64_t cols, ShardSpec shard = {}) {
    const std::vector<int64_t> whole = {rows, cols}, local = shard.local_shape(whole, mesh_);
    runs_.push_back(shard.local_runs(whole, mesh_, communicator_.rank()));
    return store_.add({.name = name, .rows = local[0], .cols = local[1], .shard = shard});
  }

  Tape& begin(int64_t rows, int64_t first_row) {
    share_.first_row = first_row;
    share_.nll.resize(static_cast<size_t>(rows));
    for (int64_t i = first_row * kWidth; i < (first_row + rows) * kWidth; ++i)
      x_.push_back(std::cos(0.9 * static_cast<double>(i)));
    for (int64_t i = first_row; i < first_row + rows; ++i)
      labels_.push_back(i % 7 == 3 ? -1 : static_cast<int32_t>(i * i % kVocab));
    store_.allocate(ParameterStore::Purpose::training);
    for (size_t p = 0; p < runs_.size(); ++p) {
      const ParameterSpec& s = store_.specs()[p];
      auto* w = static_cast<double*>(store_.master({static_cast<int32_t>(p)}));
      for (const parallel::ShardRun& run : runs_[p])
        for (int64_t e = run.global_offset; e < run.global_offset + run.length; ++e)
          *w++ = 0.4 * std::sin(1.7 * static_cast<double>(e) + static_cast<double>(s.name[0]));
    }
    return tape_.emplace(store_, TapeMode::training, nullptr);
  }
  Value input() {
    return tape_->external("x", DType::f64, std::ssize(share_.nll), kWidth, x_.data());
  }
  // Labels and loss of rows that have come from elsewhere.
  std::vector<int32_t>& labels() { return labels_; }

  Value norm(Value x, Value branch, ParameterId weight) {
    return residual_norm(*tape_, x, branch,
                         {.kind = kernels::NormKind::rms_norm,
                          .weight = tape_->wide_parameter(weight),
                          .bias = {}},
                         0)
        .y;
  }
  Value product(Value x, ParameterId weight) { return linear(*tape_, x, tape_->parameter(weight)); }
  Value gelu(Value x) { return activation(*tape_, x, kernels::ActivationKind::gelu_erf, false, 0); }
  void loss(Value logits) {
    cross_entropy(
        *tape_, logits,
        {.labels = labels_.data(), .vocab = kVocab, .totals = totals_, .nll = share_.nll.data()});
  }
  std::vector<Collective> record_backward() {
    tape_->backward();
    arena_.assign(tape_->plan() + 256, static_cast<char>(0xFF));  // NaN: poison
    return collectives_of(*tape_);
  }

  // Runs the step and sums the gradients over the axes that do not cut a parameter, but `whole`
  // ones, along which all ranks hold the same rows.
  Share run(const Axes& whole = {}) {
    tape_->run({}, arena_.data(), false);
    for (size_t p = 0; p < runs_.size(); ++p) {
      const ParameterSpec& s = store_.specs()[p];
      Axes axes = s.shard.reduce_axes();
      for (const auto axis : whole) std::erase(axes, axis);
      auto* g = static_cast<double*>(store_.gradient({static_cast<int32_t>(p)}));
      communicator_.wait(
          communicator_.start({.group = over(axes).group, .dtype = DType::f64, .count = s.size()},
                              nullptr, g, {}),
          {});
      share_.parts[s.name] = {runs_[p], {g, g + s.size()}};
    }
    return share_;
  }
  void holds_no_loss() { share_.nll.clear(); }

 private:
  Communicator& communicator_;
  Mesh mesh_;
  ParameterStore store_{Device{}, DType::f64};
  std::vector<std::vector<parallel::ShardRun>> runs_;
  std::optional<Tape> tape_;
  Doubles x_;
  std::vector<int32_t> labels_;
  double totals_[4] = {};
  Share share_;
  std::vector<char> arena_;
};

enum class Flaw { none, no_sum, no_sum_on_one_rank, wrong_group, wrong_group_on_one_rank };

// norm, in (cut by columns), gelu, out (cut by rows), residual norm, head and loss over tp x dp. With
// `sequence` tp also cuts the rows outside the two products.
void feed_forward(Communicator& c, const parallel::MeshExtents& extents, bool sequence, Flaw flaw,
                  Share* share, std::vector<Collective>* list = nullptr) {
  Model m(c, extents);
  const ShardSpec columns{{{0, tp, {kInner / 2, kInner / 2}}}},
      rows_of{{{1, tp, {kInner / 2, kInner / 2}}}};
  const ParameterId before = m.add("a norm", 1, kWidth), in = m.add("in", kInner, kWidth, columns),
                    out = m.add("out", kWidth, kInner, rows_of), after = m.add("z norm", 1, kWidth),
                    head = m.add("head", kVocab, kWidth);
  int64_t rows = kRows / extents.dp, first = rows * m.at(dp);
  if (sequence) first += (rows /= extents.tp) * m.at(tp);
  const bool last = c.rank() == c.size() - 1;
  const GroupOfRanks right = m.over({tp}), wrong = m.over({dp});
  const GroupOfRanks& ranks =
      flaw == Flaw::wrong_group || (flaw == Flaw::wrong_group_on_one_rank && last) ? wrong : right;
  Tape& t = m.begin(rows, first);
  const Value x = m.input();
  Value h = m.norm(x, {}, before);
  h = sequence ? gather_rows(t, ranks, h) : copy_to_ranks(t, ranks, h);
  h = m.product(m.gelu(m.product(h, in)), out);
  if (sequence)
    h = scatter_sum_rows(t, ranks, h);
  else if (flaw != Flaw::no_sum && !(flaw == Flaw::no_sum_on_one_rank && last))
    h = all_reduce_sum(t, ranks, h);
  m.loss(m.product(m.norm(x, h, after), head));
  const auto mine = m.record_backward();
  if (list) *list = mine;
  require_matching(c, mine);
  *share = m.run(sequence ? Axes{} : Axes{tp});
}

std::vector<Share> shares(int ranks, const std::function<void(Communicator&, Share*)>& body) {
  std::vector<Share> all(static_cast<size_t>(ranks));
  parallel::run_lockstep(ranks,
                         [&](Communicator& c) { body(c, &all[static_cast<size_t>(c.rank())]); });
  return all;
}

double feed_forward_error(const parallel::MeshExtents& extents, bool sequence,
                          Flaw flaw = Flaw::none) {
  const auto run = [](const parallel::MeshExtents& e, bool cut, Flaw f) {
    return shares(e.tp * e.dp,
                  [&](Communicator& c, Share* share) { feed_forward(c, e, cut, f, share); });
  };
  return difference(run(extents, sequence, flaw), run({}, false, Flaw::none).front());
}

TEST(Collectives, TensorParallelEqualsOneRank) {
  for (const int n : {2, 4})
    for (const bool sequence : {false, true})
      EXPECT_LT(feed_forward_error({.tp = n}, sequence), kClose) << n << sequence;
  EXPECT_LT(feed_forward_error({.tp = 2, .dp = 2}, false), kClose);
  EXPECT_LT(feed_forward_error({.tp = 2, .dp = 3}, true), kClose);
  EXPECT_LT(feed_forward_error({.dp = 4}, false), kClose);
}

TEST(Collectives, TheListsOfRanksFit) {
  Lists lists(4);
  shares(4, [&](Communicator& c, Share* share) {
    feed_forward(c, {.tp = 2, .dp = 2}, true, Flaw::none, share,
                 &lists[static_cast<size_t>(c.rank())]);
  });
  ASSERT_EQ(lists[0].size(), 4u);  // gather, scatter, and back
  EXPECT_EQ(mismatch_of(lists), "");
  std::swap(lists[1][1], lists[1][0]);
  EXPECT_NE(mismatch_of(lists).find("entry 0 of rank 0 is all_gather of 36 f64 over ranks 0, 1; "
                                    "entry 0 of rank 1 is reduce_scatter of 36 f64"),
            std::string::npos)
      << mismatch_of(lists);
}

// On one rank the lists tell, before anything runs; on all ranks alike only the numbers do.
TEST(Collectives, BrokenRulesAreNoticed) {
  const parallel::MeshExtents extents{.tp = 2, .dp = 2};
  for (const Flaw flaw : {Flaw::no_sum_on_one_rank, Flaw::wrong_group_on_one_rank}) {
    try {
      feed_forward_error(extents, false, flaw);
      ADD_FAILURE() << "went on";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("[collectives] the collectives over ranks"),
                std::string::npos)
          << e.what();
    }
  }
  EXPECT_GT(feed_forward_error(extents, false, Flaw::no_sum), 1e-3);
  EXPECT_GT(feed_forward_error(extents, false, Flaw::wrong_group), 1e-3);
  EXPECT_GT(feed_forward_error(extents, true, Flaw::wrong_group), 1e-3);
}

// Two stages; stages of one rank each hold the loss of all rows or none.
TEST(Collectives, APipelineEqualsOneRank) {
  const auto stages = [](Communicator& c, Share* share) {
    const int n = c.size(), stage = c.rank();
    Model m(c, {.pp = n});
    const bool is_first = stage == 0, is_last = stage == n - 1;
    const ParameterId in = is_first ? m.add("in", kInner, kWidth) : ParameterId{};
    const ParameterId mid = is_last ? m.add("mid", kWidth, kInner) : ParameterId{};
    const ParameterId head = is_last ? m.add("head", kVocab, kWidth) : ParameterId{};
    const GroupOfRanks line = m.over({pp});
    Tape& t = m.begin(kRows, 0);
    Value h = is_first ? m.gelu(m.product(m.input(), in))
                       : receive(t, line, stage - 1, DType::f64, kRows, kInner);
    if (!is_last) send(t, line, h, stage + 1);
    if (is_last) m.loss(m.product(m.product(h, mid), head));
    require_matching(c, m.record_backward());
    if (!is_last) m.holds_no_loss();
    *share = m.run({tp, cp, dp});
  };
  const Share one = shares(1, stages).front();
  EXPECT_EQ(difference(shares(2, stages), one), 0);
  EXPECT_EQ(difference(shares(3, stages), one), 0);  // the middle one only passes on
}

// Rows go to other ranks, through a product there and back; the loss is that of rows that stay.
TEST(Collectives, ExchangedRowsEqualOneRank) {
  const auto experts = [](Communicator& c, Share* share) {
    Model m(c, {.dp = c.size()});
    const ParameterId in = m.add("in", kInner, kWidth), head = m.add("head", kVocab, kInner);
    const GroupOfRanks ranks = m.over({dp});
    const int64_t n = c.size(), rows = kRows / n, r = c.rank();
    // Rank i keeps 1 row and gives the rest to the next.
    std::vector<int64_t> to(static_cast<size_t>(n)), from(to);
    to[static_cast<size_t>(r)] = from[static_cast<size_t>(r)] = 1;
    to[static_cast<size_t>((r + 1) % n)] += rows - 1;
    from[static_cast<size_t>((r + n - 1) % n)] += rows - 1;
    Tape& t = m.begin(rows, rows * r);
    Value h = exchange_rows(t, ranks, m.input(), to, from);
    h = m.gelu(m.product(h, in));
    h = exchange_rows(t, ranks, h, from, to);
    m.loss(m.product(h, head));
    require_matching(c, m.record_backward());
    *share = m.run();
  };
  const Share one = shares(1, experts).front();
  EXPECT_LT(difference(shares(2, experts), one), kClose);
  EXPECT_LT(difference(shares(4, experts), one), kClose);
}

// Own rows of all columns against all rows of own columns, two blocks of them, there and back.
TEST(Collectives, RowsForHeadsEqualOneRank) {
  const auto context = [](Communicator& c, Share* share) {
    Model m(c, {.cp = c.size()});
    const ParameterId in = m.add("in", kInner, kWidth), head = m.add("head", kVocab, kInner);
    const GroupOfRanks ranks = m.over({cp});
    const int64_t rows = kRows / c.size();
    Tape& t = m.begin(rows, rows * c.rank());
    const std::vector<int64_t> blocks = {kInner / 4, 3 * kInner / 4};
    Value h = rows_to_heads(t, ranks, m.product(m.input(), in), blocks);
    EXPECT_EQ(t.info(h).rows, kRows);
    EXPECT_EQ(t.info(h).cols, kInner / c.size());
    h = heads_to_rows(t, ranks, m.gelu(h), blocks);
    m.loss(m.product(h, head));
    require_matching(c, m.record_backward());
    *share = m.run();
  };
  const Share one = shares(1, context).front();
  EXPECT_LT(difference(shares(2, context), one), kClose);
  EXPECT_LT(difference(shares(4, context), one), kClose);
}

// A matrix cut by outputs and one cut by inputs, whole and in pieces beside the transfers.
TEST(Collectives, ProductsInPiecesEqualOneRank) {
  for (const int64_t pieces : {1, 2, 3}) {
    const auto tensor = [pieces](Communicator& c, Share* share) {
      Model m(c, {.tp = c.size()});
      const ParameterId in = m.add("in", kInner, kWidth, {.cuts = {{0, tp}}}),
                        out = m.add("out", kWidth, kInner, {.cuts = {{1, tp}}}),
                        head = m.add("head", kVocab, kWidth);
      const GroupOfRanks ranks = m.over({tp});
      const int64_t rows = kRows / c.size();
      Tape& t = m.begin(rows, rows * c.rank());
      Value h = gather_linear(t, ranks, m.input(), t.parameter(in), {}, pieces);
      EXPECT_EQ(t.info(h).rows, kRows);
      h = linear_scatter(t, ranks, m.gelu(h), t.parameter(out), pieces);
      m.loss(m.product(h, head));
      require_matching(c, m.record_backward());
      *share = m.run();
    };
    const Share one = shares(1, tensor).front();
    EXPECT_LT(difference(shares(2, tensor), one), kClose);
    EXPECT_LT(difference(shares(4, tensor), one), kClose);
  }
}

TEST(Collectives, RefusalsNameValueRuleAndWayOut) {
  shares(2, [](Communicator& c, Share*) {
    Model m(c, {.dp = 2});
    m.add("in", kInner, kWidth);
    const GroupOfRanks ranks = m.over({dp});
    Tape& t = m.begin(7, 0);
    EXPECT_THROW(scatter_sum_rows(t, ranks, m.input()), Error);
    EXPECT_THROW(exchange_rows(t, ranks, m.input(), {3, 3}, {3, 3}), Error);
    EXPECT_THROW(send(t, ranks, m.input(), c.rank()), Error);
    EXPECT_THROW(receive(t, ranks, 2, DType::f64, 1, 1), Error);
  });
}

// An operation that others take part in is not left out where nothing here reads its result.
TEST(Collectives, StayWhereNothingReadsThem) {
  shares(2, [](Communicator& c, Share*) {
    Model m(c, {.pp = 2});
    ParameterStore store(Device{}, DType::f64);
    const ParameterId w = store.add({.name = "w", .rows = kInner, .cols = kWidth});
    store.freeze(w);
    store.allocate(ParameterStore::Purpose::training);
    Doubles x(kWidth);
    Tape t(store, TapeMode::training, nullptr);
    const Value h = linear(t, t.external("x", DType::f64, 1, kWidth, x.data()), t.parameter(w));
    send(t, m.over({pp}), h, 1 - c.rank());
    t.backward();
    EXPECT_EQ(collectives_of(t).size(), 2u);  // and the gradient that comes back
  });
}

}  // namespace
}  // namespace saturate::ops
