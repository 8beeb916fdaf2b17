// SPDX-License-Identifier: Apache-2.0
// A small Transformer in pieces: segments in slots, layers that run again, gathers on a lane of
// their own; each against the same steps run from end to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/residual_norm.h"

namespace saturate {
namespace {

constexpr int64_t kRows = 24, kWidth = 16, kVocab = 12, kLayers = 4;
constexpr float kDrop = 0.2f;

// Batches of two sentences as one block of words: ids, positions, cu, order, labels.
struct Batch {
  std::vector<int32_t> words = std::vector<int32_t>(128);
  explicit Batch(uint64_t seed) {
    for (int64_t i = 0; i < kRows; ++i) {
      const auto n = static_cast<size_t>(i);
      words[n] = static_cast<int32_t>(philox4x32(seed, n, 0).x[0] % kVocab);
      words[24 + n] = static_cast<int32_t>(i % 12);
      words[80 + n] = static_cast<int32_t>(philox4x32(seed, n, 1).x[0] % kVocab);
    }
    words[48] = 0, words[49] = 12, words[50] = 24;
    std::iota(words.begin() + 52, words.begin() + 76, 0);
    std::stable_sort(words.begin() + 52, words.begin() + 76,
                     [&](int32_t a, int32_t b) { return words[a] < words[b]; });
    words[77] = static_cast<int32_t>(kRows);
  }
};

struct Options {
  bool recompute = false;
  bool gather = false;  // weights come through operations on lane 1
  bool ahead = false;   // all at once, not when the layer begins
  int32_t slots = 1;
  bool split = false;  // weight gradients are a segment of their own
};

// The model, its tape and the memory of `slots` micro-batches.
class Pieces {
 public:
  explicit Pieces(const Options& o) : options_(o) {
    table_ = add("table", kVocab, kWidth);
    for (Layer& l : layers_) {
      l = {add("qkv", 3 * kWidth, kWidth), add("out", kWidth, kWidth),
           add("in", 4 * kWidth, kWidth),  add("down", kWidth, 2 * kWidth),
           add("norm1", 1, kWidth),        add("norm2", 1, kWidth)};
    }
    store_.allocate(ParameterStore::Purpose::training);
    store_.initialise(Stream(store_.device()), 3);
    batches_.resize(static_cast<size_t>(o.slots) * 128);
    random_.resize(static_cast<size_t>(o.slots) * 2);
    tape_.emplace(store_, TapeMode::training, random_.data());
    tape_->per_slot(batches_.data(), 128 * sizeof(int32_t), 128 * sizeof(int32_t));
    tape_->per_slot(random_.data(), 2 * sizeof(uint64_t), 2 * sizeof(uint64_t));
    record();
    if (o.recompute) {
      for (const OperationRange& region : tape_->regions()) {
        for (int32_t i = region.begin; i < region.end; ++i) tape_->recompute(i, Recompute::whole);
      }
    }
    tape_->backward(o.split);
    arena_.resize(tape_->plan(o.slots) + 256);
    std::fill(arena_.begin(), arena_.end(), static_cast<char>(0xFF));  // NaN: poison
  }

  void fill(int32_t slot, uint64_t micro_batch) {
    const Batch b(micro_batch);
    std::copy(b.words.begin(), b.words.end(), batches_.begin() + slot * 128);
    random_[static_cast<size_t>(slot) * 2] = 9;
    random_[static_cast<size_t>(slot) * 2 + 1] = micro_batch;
  }
  void run(const char* segment, int32_t slot, bool accumulate,
           std::span<const int32_t> block_slots = {}, char* scratch = nullptr) {
    tape_->run({}, arena_.data(),
               {.range = tape_->range(segment),
                .slot = slot,
                .accumulate = accumulate,
                .block_slots = block_slots,
                .scratch = scratch});
  }
  std::vector<float> gradients() const {
    const auto* g = store_.gradients().as<float>();
    return {g, g + store_.padded_count()};
  }
  double loss() const { return totals_[0]; }
  const Tape& tape() const { return *tape_; }

 private:
  struct Layer {
    ParameterId qkv, out, in, down, norm1, norm2;
  };
  ParameterId add(const char* name, int64_t rows, int64_t cols) {
    return store_.add({.name = name + std::to_string(store_.specs().size()),
                       .rows = rows,
                       .cols = cols,
                       .init = rows == 1 ? Init::ones : Init::normal,
                       .init_scale = 0.3f});
  }
  Value weight(ParameterId id) {
    Tape& t = *tape_;
    if (!options_.gather) return t.parameter(id);
    const Value from = t.parameter(id), to = t.gathered_parameter(id);
    const auto bytes = static_cast<int64_t>(t.info(to).bytes());
    t.record("gather", {from, options_.ahead ? Value{} : begun_}, {to},
             [=](const Run& r) { std::copy_n(r.as<char>(from), bytes, r.as<char>(to)); }, {},
             {.kind = OperationKind::collective, .group = 1, .bytes = bytes, .lane = 1});
    return to;
  }
  void record() {
    Tape& t = *tape_;
    const int32_t* b = batches_.data();
    t.layer(Stack::decoder, 0, 0);
    Value x = ops::embedding(t, {.tokens = {.ids = b,
                                            .positions = b + 24,
                                            .cu = b + 48,
                                            .order = b + 52,
                                            .valid = b + 77,
                                            .rows = kRows,
                                            .sequences = 2},
                                 .table = t.parameter(table_),
                                 .dropout = kDrop});
    Value branch;
    for (int64_t i = 0; i < kLayers; ++i) {
      const Layer& l = layers_[static_cast<size_t>(i)];
      t.begin_region();
      begun_ = branch ? branch : x;
      t.layer(Stack::decoder, i, 0);
      const auto norm = [&](ParameterId id) {
        return ops::NormParameters{
            .kind = kernels::NormKind::rms_norm, .weight = t.wide_parameter(id), .bias = {}};
      };
      auto joint = ops::residual_norm(t, x, branch, norm(l.norm1), kDrop);
      Value qkv = ops::linear(t, joint.y, weight(l.qkv));
      qkv = ops::rotary(t, {qkv, 0}, {.heads = 4, .head_size = 8, .positions = b + 24});
      const Value heads = ops::attention(t, {.q = {qkv, 0},
                                             .k = {qkv, kWidth},
                                             .v = {qkv, 2 * kWidth},
                                             .heads = 2,
                                             .kv_heads = 2,
                                             .head_size = 8,
                                             .cu_q = b + 48,
                                             .cu_k = b + 48,
                                             .sequences = 2,
                                             .max_q = 12,
                                             .max_k = 12,
                                             .causal = true,
                                             .dropout = kDrop});
      branch = ops::linear(t, heads, weight(l.out));
      t.layer(Stack::decoder, i, 1);
      joint = ops::residual_norm(t, joint.sum, branch, norm(l.norm2), kDrop);
      const Value wide = ops::linear(t, joint.y, weight(l.in));
      const Value active = ops::activation(t, wide, kernels::ActivationKind::silu, true, kDrop);
      branch = ops::linear(t, active, weight(l.down));
      x = joint.sum;
      t.end_region();
    }
    t.layer(Stack::decoder, kLayers, 0);
    const Value hidden = ops::residual_norm(t, x, branch,
                                            {.kind = kernels::NormKind::rms_norm,
                                             .weight = t.wide_parameter(layers_[0].norm1),
                                             .bias = {}},
                                            kDrop)
                             .y;
    ops::cross_entropy(t, ops::linear(t, hidden, t.parameter(table_)),
                       {.labels = b + 80, .vocab = kVocab, .totals = totals_});
  }

  Options options_;
  ParameterStore store_{{}, DType::f32};
  ParameterId table_;
  Layer layers_[kLayers];
  std::vector<int32_t> batches_;
  std::vector<uint64_t> random_;
  double totals_[4] = {};
  Value begun_;  // what the layer's gathers wait for
  std::optional<Tape> tape_;
  std::vector<char> arena_;
};

struct Outcome {
  double loss;
  std::vector<float> gradients;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Micro-batches one after another, each from end to end.
Outcome in_turn(const Options& o, uint64_t micro_batches) {
  Pieces p(o);
  EXPECT_EQ(flaw_of(p.tape(), p.tape().layout()), "");
  for (uint64_t m = 0; m < micro_batches; ++m) {
    p.fill(0, m);
    p.run(nullptr, 0, m > 0);
  }
  return {p.loss(), p.gradients()};
}

TEST(TapeSlots, ForwardOfTheNextBeforeBackwardOfThisGivesTheSameBits) {
  const Outcome want = in_turn({}, 4);
  EXPECT_NE(want.loss, 0.0);
  for (const bool recompute : {false, true}) {
    Pieces p({.recompute = recompute, .slots = 3});
    EXPECT_EQ(flaw_of(p.tape(), p.tape().layout()), "");
    // Four micro-batches in three slots, as a stage of a pipeline would run them.
    for (int m : {0, 1, 2}) p.fill(m, static_cast<uint64_t>(m));
    p.run("forward", 0, false);
    p.run("forward", 1, false);
    p.run("forward", 2, false);
    p.run("backward", 0, false);
    p.fill(0, 3);
    p.run("forward", 0, false);
    p.run("backward", 1, true);
    p.run("backward", 2, true);
    p.run("backward", 0, true);
    EXPECT_EQ(want, (Outcome{p.loss(), p.gradients()}));
  }
}

TEST(TapeSlots, WeightGradientsMayComeLaterAndBatchesLieInSlotsOfTheirOwn) {
  const Outcome want = in_turn({}, 4);
  for (const bool recompute : {false, true}) {
    Pieces p({.recompute = recompute, .slots = 3, .split = true});
    EXPECT_EQ(flaw_of(p.tape(), p.tape().layout()), "");
    EXPECT_GT(p.tape().range("weight_gradients").size(), 4 * kLayers - 1);
    std::vector<char> scratch(p.tape().layout().scratch_bytes + 256, static_cast<char>(0xFF));
    const auto run = [&](const char* segment, int32_t m, bool accumulate) {
      const int32_t blocks[] = {(m + 1) % 3, (m + 1) % 3};
      p.run(segment, m % 3, accumulate, blocks, scratch.data());
    };
    for (int32_t m : {0, 1, 2}) p.fill((m + 1) % 3, static_cast<uint64_t>(m));
    run("forward", 0, false);
    run("forward", 1, false);
    run("backward", 0, false);
    run("backward", 1, true);
    run("weight_gradients", 0, false);
    run("forward", 2, false);
    p.fill(1, 3);
    run("forward", 3, false);
    run("weight_gradients", 1, true);
    run("backward", 2, true);
    run("backward", 3, true);
    run("weight_gradients", 2, true);
    run("weight_gradients", 3, true);
    EXPECT_EQ(want, (Outcome{p.loss(), p.gradients()}));
  }
}

TEST(TapeSlots, EachSlotAddsItsStashAndNothingElse) {
  const auto layout = [](int32_t slots) { return Pieces({.slots = slots}).tape().layout(); };
  const TapePlan one = layout(1), two = layout(2), three = layout(3);
  EXPECT_EQ(one.stash_bytes, 0u);  // one slot shares memory between what lives on and what does not
  EXPECT_GT(two.stash_bytes, 0u);
  EXPECT_EQ(two.stash_bytes, three.stash_bytes);
  EXPECT_EQ(two.scratch_bytes, three.scratch_bytes);
  EXPECT_EQ(three.bytes(), two.bytes() + two.stash_bytes);
  EXPECT_LE(one.bytes(), two.stash_bytes + two.scratch_bytes);
}

TEST(TapeRecompute, GivesTheSameBitsInLessMemory) {
  EXPECT_EQ(in_turn({}, 2), in_turn({.recompute = true}, 2));
  const auto layout = [](bool recompute, int32_t slots) {
    return Pieces({.recompute = recompute, .slots = slots}).tape().layout();
  };
  EXPECT_LT(layout(true, 1).bytes(), layout(false, 1).bytes() / 2);
  EXPECT_LT(layout(true, 2).stash_bytes, layout(false, 2).stash_bytes / 3);
}

TEST(TapeRecompute, RunsNoMoreAgainThanGradientsRead) {
  const auto count = [](bool recompute, const char* name) {
    const Pieces p({.recompute = recompute});
    int64_t n = 0;
    for (size_t i = 0; i < p.tape().operations(); ++i)
      n += p.tape().operation(i).name == std::string(name);
    return n;
  };
  EXPECT_EQ(count(true, "attention"), 2 * count(false, "attention"));
  // Of four products of a layer the last one's result is nobody's but the next layer's.
  EXPECT_EQ(count(true, "linear"), count(false, "linear") + 3 * kLayers);
  EXPECT_EQ(count(true, "linear_weight_gradient"), count(false, "linear_weight_gradient"));
}

// What a ZeRO-3 stage does: weights are gathered before they are used and forgotten, and gathered
// again for the gradients.
TEST(TapeLanes, GathersOnTheirOwnLane) {
  const Outcome want = in_turn({}, 2);
  EXPECT_EQ(want, in_turn({.gather = true}, 2));
  EXPECT_EQ(want, in_turn({.recompute = true, .gather = true}, 2));
  EXPECT_EQ(want, in_turn({.recompute = true, .gather = true, .ahead = true}, 2));
  const Pieces p({.recompute = true, .gather = true});
  const Pieces held({.gather = true});
  EXPECT_LT(p.tape().layout().bytes(), held.tape().layout().bytes() / 2);
  const Tape& t = p.tape();
  EXPECT_EQ(t.layout().lanes, 2);
  int64_t gathers = 0, waits = 0;
  for (size_t i = 0; i < t.operations(); ++i) {
    const auto& o = t.operation(i);
    gathers += o.traits.kind == OperationKind::collective;
    if (o.traits.lane == 0 && o.name == std::string("linear"))
      waits += std::ssize(t.layout().waits[i]);
  }
  EXPECT_EQ(gathers, 8 * kLayers);
  EXPECT_EQ(waits, 7 * kLayers);  // every product with a gathered weight waits for it
}

// Reads and writes decide; nothing here computes.
class Lanes : public ::testing::Test {
 protected:
  Value value(const char* label) { return tape_.make(label, DType::f32, 64, 64); }
  void operation(std::vector<Value> reads, std::vector<Value> writes, int32_t lane = 0) {
    tape_.record("operation", std::move(reads), std::move(writes), [](const saturate::Run&) {}, {},
                 {.lane = lane});
  }
  ParameterStore store_{{}, DType::f32};
  Tape tape_{store_, TapeMode::inference, nullptr};
};

TEST_F(Lanes, MemoryStaysUntilTheOtherLaneIsJoined) {
  const Value a = value("a"), b = value("b"), c = value("c"), d = value("d"), e = value("e");
  operation({}, {a});
  operation({a}, {b}, 1);
  operation({}, {c});  // may run while lane 1 reads a and writes b
  operation({c}, {d});
  operation({b, d}, {e});  // joins
  tape_.keep(e);
  tape_.plan();
  const TapePlan& plan = tape_.layout();
  EXPECT_EQ(plan.waits[1], (std::vector<int32_t>{TapePlan::kFork, 0}));
  EXPECT_EQ(plan.waits[4], std::vector<int32_t>{1});
  EXPECT_EQ(flaw_of(tape_, plan), "");

  TapePlan broken = plan;
  broken.places[static_cast<size_t>(c.id)].offset = broken.places[static_cast<size_t>(a.id)].offset;
  EXPECT_NE(flaw_of(tape_, broken).find("share memory"), std::string::npos)
      << flaw_of(tape_, broken);
  broken = plan;
  broken.waits[4].clear();
  EXPECT_NE(flaw_of(tape_, broken).find("does not wait"), std::string::npos);
  broken = plan;
  broken.waits[1] = {};
  EXPECT_NE(flaw_of(tape_, broken).find("starts lane 1"), std::string::npos);
  broken = plan;
  broken.places[static_cast<size_t>(a.id)].offset = static_cast<int64_t>(plan.scratch_bytes);
  EXPECT_NE(flaw_of(tape_, broken).find("outside"), std::string::npos);
}

TEST_F(Lanes, WhatIsPrefetchedKeepsItsMemoryFromTheBeginning) {
  const Value a = value("a"), b = value("b"), w = value("w"), y = value("y");
  operation({}, {a});
  operation({a}, {b});
  operation({}, {w}, 1);  // nothing holds it back: it may run while lane 0 writes a
  operation({b, w}, {y});
  tape_.plan();
  EXPECT_EQ(flaw_of(tape_, tape_.layout()), "");
  EXPECT_EQ(tape_.layout().bytes(), size_t{4 * 64 * 64 * 4} - 64 * 64 * 4);  // y in the place of a
}

// What is gathered shares memory with what was, if it may not start before that has been used.
TEST_F(Lanes, AGatherStartsNoEarlierThanWhatItReads) {
  const auto bytes = [&](bool paced) {
    Tape t(store_, TapeMode::inference, nullptr);
    const auto record = [&](std::vector<Value> reads, Value write, int32_t lane) {
      t.record("operation", std::move(reads), {write}, [](const saturate::Run&) {}, {},
               {.lane = lane});
    };
    std::vector<Value> sums{t.make("x", DType::f32, 1, 64)};
    record({}, sums[0], 0);
    for (size_t i = 0; i < 8; ++i) {
      const Value w = t.make("w", DType::f32, 64, 64);
      record({paced && i > 0 ? sums[i - 1] : Value{}}, w, 1);  // one is gathered, one in use
      sums.push_back(t.make("x", DType::f32, 1, 64));
      record({sums[i], w}, sums.back(), 0);
    }
    const size_t arena = t.plan();
    EXPECT_EQ(flaw_of(t, t.layout()), "");
    return arena;
  };
  constexpr size_t kWeight = 64 * 64 * 4;
  EXPECT_GE(bytes(false), 8 * kWeight);
  EXPECT_LT(bytes(true), 3 * kWeight);
}

// As gradients are reduced: recorded when all are known, they start where theirs is finished.
TEST_F(Lanes, WhatIsRecordedLateStartsEarlyAndCostsNoMemory) {
  std::vector<float> sums(8 * 64 * 64);
  const auto bytes = [&](bool reduce) {
    Tape t(store_, TapeMode::inference, nullptr);
    Value x = t.make("x", DType::f32, 64, 64);
    const auto record = [&](std::vector<Value> reads, std::vector<Value> writes, int32_t lane) {
      t.record(lane == 0 ? "gradient" : "reduce", std::move(reads), std::move(writes),
               [](const saturate::Run&) {}, {}, {.lane = lane});
    };
    record({}, {x}, 0);
    std::vector<Value> gradients;
    for (int64_t i = 0; i < 8; ++i) {
      gradients.push_back(t.external("d", DType::f32, 64, 64, sums.data() + i * 64 * 64));
      const Value next = t.make("x", DType::f32, 64, 64);
      record({x}, {next, gradients.back()}, 0);
      x = next;
    }
    for (const Value d : gradients) {
      if (reduce) record({}, {d}, 1);
    }
    const size_t arena = t.plan();
    EXPECT_EQ(flaw_of(t, t.layout()), "");
    if (reduce) {
      EXPECT_EQ(t.operation(2).name, std::string("reduce"));  // behind the first gradient
    }
    return arena;
  };
  EXPECT_EQ(bytes(false), size_t{2 * 64 * 64 * 4});
  EXPECT_LE(bytes(true), size_t{3 * 64 * 64 * 4});
}

TEST_F(Lanes, WhatIsReadUnwrittenOrOutlivesItsSegmentIsFound) {
  const Value a = value("a"), b = value("b"), c = value("c");
  operation({}, {a});
  tape_.segment("second");
  operation({a, c}, {b});
  tape_.plan(2);
  EXPECT_NE(flaw_of(tape_, tape_.layout()).find("reads c before"), std::string::npos);
  EXPECT_THROW(tape_.range("third"), Error);
}

TEST_F(Lanes, SlotsShareNothingThatLivesOn) {
  const Value a = value("a"), b = value("b");
  operation({}, {a});
  tape_.segment("second");
  operation({a}, {b});
  tape_.plan(2);
  TapePlan broken = tape_.layout();
  EXPECT_EQ(flaw_of(tape_, broken), "");
  broken.places[static_cast<size_t>(a.id)].stash = false;
  broken.places[static_cast<size_t>(b.id)].offset = 16384;
  broken.scratch_bytes *= 2;
  EXPECT_NE(flaw_of(tape_, broken).find("slots share"), std::string::npos);
}

}  // namespace
}  // namespace saturate
