// SPDX-License-Identifier: Apache-2.0
#include "ops/tape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace saturate {
namespace {

// Two layers on an embedding, as the tape sees them: what matters is who reads and writes what.
class DeferredGradients : public ::testing::Test {
 protected:
  DeferredGradients() {
    for (const char* name : {"table", "first", "second", "bias"}) {
      store_.add({.name = name, .rows = 8, .cols = name == std::string("table") ? 32 : 8});
    }
  }
  void operation(Tape& t, const char* name, std::vector<Value> reads, std::vector<Value> writes,
                 Tape::BackwardFn backward = {}) {
    t.record(
        name, std::move(reads), std::move(writes),
        [this, name](const saturate::Run&) { ran_.push_back(name); }, std::move(backward));
  }
  void weight_gradient(Tape& t, const char* name, std::vector<Value> reads, Value weight) {
    const Value d_y = reads.back();
    bool first = false;
    if (bias_) {  // of the same gradient, right before
      const Value b = t.parameter_gradient(t.parameter({3}), &first);
      t.record_parameter_gradient("d_bias", {d_y}, {b},
                                  [this](const saturate::Run&) { ran_.push_back("d_bias"); });
      t.may_be_grouped({.of = d_y, .out = {}});
      bias_ = false;
    }
    const Value g = t.parameter_gradient(weight, &first);
    t.record_parameter_gradient(name, std::move(reads), {g},
                                [this, name](const saturate::Run&) { ran_.push_back(name); });
    t.may_be_grouped({.sizes = {.m = 8, .n = 8, .k = 4}, .args = {}, .gradient = d_y});
  }
  // `overwrites`: the first layer's input gradient takes the place of its output gradient. `places`:
  // of groups of weight gradients; 0: there are none.
  std::vector<std::string> order(bool overwrites, int64_t places = 0) {
    Tape t(store_, TapeMode::training, nullptr);
    const Value table = t.parameter({0}), first = t.parameter({1}), second = t.parameter({2});
    const auto value = [&t](const char* label) { return t.make(label, DType::f32, 4, 8); };
    const Value x = value("x"), y = value("y"), z = value("z");
    operation(t, "embedding", {table}, {x}, [&, this](Tape& b) {
      bool is_first = false;
      const Value g = b.parameter_gradient(table, &is_first);
      operation(b, "d_table", {b.gradient(x)}, {g});
    });
    operation(t, "layer1", {x, first}, {y}, [&, this](Tape& b) {
      const Value d_y = b.gradient(y);
      weight_gradient(b, "d_first", {x, d_y}, first);
      const Value d_x = overwrites ? b.alias("d_x", d_y) : value("d_x");
      operation(b, "d_x", {d_y, first}, {d_x});
      b.set_gradient(x, d_x);
    });
    operation(t, "layer2", {y, second}, {z}, [&, this](Tape& b) {
      weight_gradient(b, "d_second", {y, b.gradient(z)}, second);
      const Value d_y = value("d_y");
      operation(b, "d_y", {b.gradient(z), second}, {d_y});
      b.set_gradient(y, d_y);
    });
    const Value d_z = value("d_z");
    operation(t, "loss", {z}, {d_z});
    t.set_gradient(z, d_z);
    t.backward();
    t.group_weight_gradients(places);
    finished_ = t.finished_gradients();
    std::vector<char> arena(t.plan() + 256);
    EXPECT_EQ(flaw_of(t, t.layout()), "");
    t.run({}, arena.data(), false);
    const std::vector<std::string> names(ran_.begin() + 4, ran_.end());  // after the forward pass
    ran_.clear();
    return names;
  }
  ParameterStore store_{{}, DType::f32};
  std::vector<std::string> ran_;
  bool bias_ = false;  // the second layer has one
  std::vector<Tape::FinishedGradient> finished_;
};

// The table has 256 elements, so 64 are enough: those of one weight.
TEST_F(DeferredGradients, TheNearestWeightRunsBehindTheTable) {
  EXPECT_EQ(order(false),
            (std::vector<std::string>{"d_second", "d_y", "d_x", "d_table", "d_first"}));
  ASSERT_EQ(finished_.size(), 3u);
  EXPECT_EQ(finished_[0].parameter, 2);
  EXPECT_EQ(finished_[1].parameter, 0);
  EXPECT_EQ(finished_[1].operation, 7);
  EXPECT_EQ(finished_[2].parameter, 1);
  EXPECT_EQ(finished_[2].operation, 8);
}

TEST_F(DeferredGradients, WhatIsOverwrittenIsReadBefore) {
  EXPECT_EQ(order(true),
            (std::vector<std::string>{"d_y", "d_first", "d_x", "d_table", "d_second"}));
}

// One unit each: two of 66 places.
TEST_F(DeferredGradients, AGroupWaitsForMoreProducts) {
  EXPECT_EQ(order(false, 66),
            (std::vector<std::string>{"d_y", "d_x", "d_table", "d_second", "d_first"}));
  ASSERT_EQ(finished_.size(), 3u);
  EXPECT_EQ(finished_[0].parameter, 0);
  for (const size_t i : {1u, 2u}) EXPECT_EQ(finished_[i].operation, 7);
}

TEST_F(DeferredGradients, AFullGroupDoesNotWait) {
  EXPECT_EQ(order(false, 1), order(false));
  EXPECT_EQ(order(false, 2),
            (std::vector<std::string>{"d_y", "d_x", "d_table", "d_second", "d_first"}));
}

TEST_F(DeferredGradients, ABiasGoesWithTheProductOfItsGradient) {
  bias_ = true;
  EXPECT_EQ(order(false, 66),
            (std::vector<std::string>{"d_y", "d_x", "d_table", "d_second", "d_bias", "d_first"}));
  ASSERT_EQ(finished_.size(), 4u);
  for (const size_t i : {1u, 2u, 3u}) EXPECT_EQ(finished_[i].operation, 7) << "one operation";
  bias_ = true;
  const std::vector<std::string> alone = order(false, 1);
  const auto at = std::find(alone.begin(), alone.end(), "d_bias");
  ASSERT_NE(at, alone.end());
  EXPECT_EQ(*std::next(at), "d_second") << "as it was recorded, where the product is in no group";
}

TEST_F(DeferredGradients, AGroupRunsBeforeItsOperandsAreOverwritten) {
  EXPECT_EQ(order(true, 66), order(true));
}

TEST_F(DeferredGradients, WorkForFrozenParametersAloneIsLeftOut) {
  store_.freeze({0});
  store_.freeze({1});
  EXPECT_EQ(order(false), (std::vector<std::string>{"d_second"}));
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].parameter, 2);
}

TEST_F(DeferredGradients, WhatLiesBelowAFrozenParameterIsReached) {
  store_.freeze({2});
  EXPECT_EQ(order(false), (std::vector<std::string>{"d_y", "d_x", "d_table", "d_first"}));
  ASSERT_EQ(finished_.size(), 2u);
}

// Two operations with sums in two stages, which leave the second to one behind the last; the third
// adds to what the second wrote, so both keep theirs.
TEST(FoldsAtTheEnd, OneOperationRunsThem) {
  ParameterStore store({}, DType::f32);
  for (const char* name : {"a", "b"}) store.add({.name = name, .rows = 1, .cols = 8});
  for (const bool shared : {false, true}) {
    Tape t(store, TapeMode::training, nullptr);
    std::vector<bool> at_once;
    const Value x = t.make("x", DType::f32, 4, 8), y = t.make("y", DType::f32, 4, 8);
    t.record("forward", {}, {x}, [](const saturate::Run&) {});
    std::vector<Value> stages;
    const auto sums = [&](Value parameter) {
      bool first = false;
      const Value g = t.parameter_gradient(parameter, &first);
      stages.push_back(t.make("stage", DType::f32, 1, 8));
      t.record("sums", {x}, {g, stages.back()},
               [&](const saturate::Run& r) { at_once.push_back(r.folds == nullptr); });
      t.may_fold_later(stages.back(), {g, Value{}});
    };
    sums(t.parameter({0}));
    sums(t.parameter({1}));
    if (shared) sums(t.parameter({1}));
    t.record("last", {x}, {y}, [](const saturate::Run&) {});
    const size_t before = t.operations();
    t.fold_at_the_end();
    ASSERT_EQ(t.operations(), before + 1);
    const auto& fold = t.operation(before);
    EXPECT_EQ(fold.reads.size(), shared ? 1u : 2u);
    EXPECT_EQ(fold.writes.size(), fold.reads.size());
    EXPECT_EQ(fold.reads[0], stages[0]);
    for (const auto& f : t.finished_gradients()) {
      const bool late = !shared || f.parameter == 0;
      EXPECT_EQ(f.operation, late ? static_cast<int32_t>(before) : 3);
    }
    std::vector<char> arena(t.plan() + 256);
    EXPECT_EQ(flaw_of(t, t.layout()), "");
    EXPECT_NE(t.layout().places[static_cast<size_t>(stages[0].id)].offset,
              t.layout().places[static_cast<size_t>(y.id)].offset)
        << "what is folded at the end lives on";
    t.run({}, arena.data(), false);
    EXPECT_EQ(at_once,
              shared ? (std::vector<bool>{false, true, true}) : (std::vector<bool>{false, false}));
  }
}

TEST(TapeMasks, NameTheirPlaceInTheModel) {
  const ParameterStore store({}, DType::f32);
  const uint64_t state[2] = {1, 2};
  // The second tape is of a rank that has another layer only, and meets its kinds in another order.
  Tape all(store, TapeMode::training, state), part(store, TapeMode::training, state);
  std::set<uint32_t> sites;
  for (const Stack stack : {Stack::encoder, Stack::decoder}) {
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t mixer = 0; mixer < 3; ++mixer) {
        all.layer(stack, layer, mixer);
        for (const MaskKind kind : {MaskKind::attention, MaskKind::residual}) {
          const RngRef rng = all.random(kind);
          EXPECT_EQ(rng.state, state);
          EXPECT_LT(rng.site, 1u << 24);
          EXPECT_TRUE(sites.insert(rng.site).second);
        }
      }
    }
  }
  part.layer(Stack::decoder, 2, 1);
  part.random(MaskKind::residual);
  Tape same(store, TapeMode::training, state);
  same.layer(Stack::decoder, 2, 1);
  EXPECT_EQ(part.random(MaskKind::attention).site, same.random(MaskKind::attention).site);
}

TEST(TapeMasks, TwoOperationsMayNotShareThem) {
  const ParameterStore store({}, DType::f32);
  Tape t(store, TapeMode::training, nullptr);
  t.layer(Stack::decoder, 4, 2);
  t.random(MaskKind::activation);
  t.random(MaskKind::attention);
  EXPECT_THROW(t.random(MaskKind::activation), Error);
  t.layer(Stack::decoder, 5, 2);
  EXPECT_NO_THROW(t.random(MaskKind::activation));
  t.layer(Stack::decoder, 4, 2);  // back again: the sites are still taken
  EXPECT_THROW(t.random(MaskKind::attention), Error);
  EXPECT_THROW(t.layer(Stack::encoder, 4096, 0), Error);
  EXPECT_THROW(t.layer(Stack::encoder, 0, 32), Error);
}

}  // namespace
}  // namespace saturate
