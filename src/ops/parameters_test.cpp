// SPDX-License-Identifier: Apache-2.0
#include "ops/parameters.h"

#include <gtest/gtest.h>

#include "kernels/gemm/packed/packed_linear.h"

namespace saturate {
namespace {

constexpr DType f32 = DType::f32, f64 = DType::f64, bf16 = DType::bf16;

std::vector<float> values_of(const ParameterStore& store, const std::string& name,
                             StateArray array = StateArray::master) {
  const ParameterId id = store.find(name);
  std::vector<float> values(static_cast<size_t>(store.spec(id).size()));
  store.get(Stream(store.device()), id, values, array);
  return values;
}

ParameterSpec random_matrix(const std::string& name, int64_t rows, int64_t cols) {
  return {.name = name, .rows = rows, .cols = cols, .init = Init::normal, .init_scale = 1.0f};
}

// A table, a packed q, k, v of 8 + 4 + 4 rows, a product cut by columns, a norm.
void add_all(ParameterStore& store) {
  ParameterSpec table = random_matrix("table", 12, 6);
  table.zero_row = 7;
  store.add(table);
  ParameterSpec qkv = random_matrix("qkv", 16, 6);
  qkv.blocks = {8, 4, 4};
  store.add(qkv);
  store.add(random_matrix("out", 6, 8));
  store.add({.name = "norm", .cols = 6, .init = Init::ones});
}

// Cuts of rows, of columns and of each block of packed rows.
TEST(ParameterStore, ACutParameterStartsAsThatPartOfTheWhole) {
  ParameterStore whole({}, f32);
  add_all(whole);
  whole.allocate(Purpose::inference);
  whole.initialise(Stream(Device{}), 42);
  const parallel::ShardSpec rows{{{.dimension = 0}}}, columns{{{.dimension = 1}}};
  const std::pair<const char*, parallel::ShardSpec> cuts[] = {
      {"out", columns}, {"qkv", rows}, {"table", rows}, {"norm", {}}};
  for (const int ranks : {1, 2, 4}) {
    const parallel::Mesh mesh(ranks, {.tp = ranks});
    for (int rank = 0; rank < ranks; ++rank) {
      ParameterStore part({}, f32);  // in another order, as if other parameters were elsewhere
      for (const auto& [name, shard] : cuts) {
        ParameterSpec spec = whole.spec(whole.find(name));
        spec.number = whole.find(name).index;
        spec.shard = shard;
        part.add(part_of(spec, mesh, rank));
      }
      part.allocate(Purpose::inference);
      part.initialise(Stream(Device{}), 42);
      for (const ParameterSpec& p : part.specs()) {
        const auto got = values_of(part, p.name), all = values_of(whole, p.name);
        EXPECT_EQ(std::ssize(got) * (p.shard.replicated() ? 1 : ranks), std::ssize(all)) << p.name;
        size_t at = 0;
        for (const parallel::ShardRun& run : p.whole.runs) {
          for (int64_t e = run.global_offset; e < run.global_offset + run.length; ++e)
            ASSERT_EQ(got[at++], all[static_cast<size_t>(e)]) << p.name << " of rank " << rank;
        }
        EXPECT_EQ(at, got.size()) << p.name;
      }
      // By hand, without the runs: the first row of k that the rank holds.
      const auto qkv = values_of(part, "qkv"), all = values_of(whole, "qkv");
      const int64_t k = 8 / ranks, from = 8 + 4 / ranks * rank;
      for (int64_t c = 0; c < 6; ++c)
        EXPECT_EQ(qkv[static_cast<size_t>(k * 6 + c)], all[static_cast<size_t>(from * 6 + c)]);
    }
  }
}

// What the numbers were before parameters could be cut: a run that starts today starts as ever.
TEST(ParameterStore, FirstValuesAreThoseOfEarlierVersions) {
  ParameterStore store({}, f32);
  add_all(store);
  store.allocate(Purpose::inference);
  store.initialise(Stream(Device{}), 42);
  const auto table = values_of(store, "table"), qkv = values_of(store, "qkv");
  EXPECT_EQ(table[0], 0x1.c3628cp-4f);
  EXPECT_EQ(qkv[95], -0x1.c1476cp-1f);
  for (size_t c = 0; c < 6; ++c) EXPECT_EQ(table[7 * 6 + c], 0.0f);
  EXPECT_NE(table[8 * 6], 0.0f);
}

TEST(ParameterStore, FrozenParametersTakeNoMemoryOfTraining) {
  ParameterStore all({}, bf16), some({}, bf16);
  add_all(all);
  add_all(some);
  some.freeze(some.find("table"));
  some.freeze(some.find("out"));
  // 256 elements each: what is frozen keeps its master and its 16-bit copy.
  for (const StateArray a : kStateArrays) {
    const size_t each = 256 * (a == StateArray::compute ? 2 : 4);
    const bool kept = a == StateArray::master || a == StateArray::compute;
    // Those of ranks that share state, of Adafactor and of products in fp8.
    const bool others =
        a == StateArray::residual || a == StateArray::factors || a == StateArray::fp8_sites;
    const size_t here = others ? 0 : 1;
    EXPECT_EQ(all.bytes(a, Purpose::averaged_training), 4 * each * here);
    EXPECT_EQ(some.bytes(a, Purpose::averaged_training), (kept ? 4 : 2) * each * here);
    EXPECT_EQ(some.bytes(a, Purpose::inference), kept ? 4 * each : 0);
  }
  EXPECT_EQ(some.padded_count(), 2 * 256);
  some.allocate(Purpose::averaged_training);
  EXPECT_EQ(some.gradient(some.find("table")), nullptr);
  EXPECT_EQ(some.gradient(some.find("qkv")), some.gradients().data());
  EXPECT_EQ(some.gradient(some.find("norm")), some.gradients().as<float>() + 256);
  EXPECT_EQ(some.at(StateArray::average, some.find("out")), some.master(some.find("out")));
  EXPECT_EQ(some.at(StateArray::first_moment, some.find("out")), nullptr);
}

TEST(ParameterStore, ShipsTheAverageAndTheMastersOfWhatIsFrozen) {
  const Stream stream(Device{});
  for (const DType type : {f32, f64}) {
    ParameterStore from({}, type), to({}, type);
    add_all(from);
    add_all(to);
    from.freeze(from.find("qkv"));
    from.allocate(Purpose::averaged_training);
    to.allocate(Purpose::inference);
    from.initialise(stream, 1);
    from.reset_average(stream);
    const auto table = values_of(from, "table");
    from.set(stream, from.find("table"), std::vector<float>(table.size(), 3.0f).data());
    EXPECT_EQ(from.shipped(), StateArray::average);
    to.copy_shipped(stream, from);
    EXPECT_EQ(values_of(to, "table"), table);
    EXPECT_EQ(values_of(to, "table"), values_of(from, "table", StateArray::average));
    EXPECT_EQ(values_of(to, "qkv"), values_of(from, "qkv"));
  }
}

TEST(ParameterStore, HoldsWhatIsFrozenInFewerBytes) {
  const Stream stream(Device{});
  constexpr int64_t kRows = 256, kCols = 1024;
  const auto declare = [](ParameterStore& store) {
    store.add({.name = "qkv",
               .rows = kRows,
               .cols = kCols,
               .multiplied = true,
               .blocks = {kRows / 2, kRows / 4, kRows / 4}});
    store.add({.name = "table", .rows = kRows, .cols = kCols, .looked_up = true});
    store.add({.name = "norm", .cols = kCols, .wide = true});
    const ParameterId adapter = store.add({.name = "adapter", .rows = 4, .cols = kCols});
    for (int32_t i = 0; i < adapter.index; ++i) store.freeze({i});
    store.quantize_frozen();
    store.allocate(Purpose::training);
  };
  for (const DType type : {bf16, DType::f16, f32}) {
    ParameterStore store({}, type), copy({}, type);
    declare(store);
    declare(copy);
    const bool narrow = size_of(type) == 2;
    const auto bytes_of = [&](const char* name) {
      size_t sum = 0;
      const ParameterGroup& group = store.group_of(store.spec(store.find(name)));
      for (const StateArray a : kStateArrays) sum += group.bytes(a, Purpose::training);
      return sum;
    };
    EXPECT_LT(8.0 * static_cast<double>(bytes_of("qkv")), 4.15 * kRows * kCols);
    if (narrow) {
      EXPECT_EQ(bytes_of("table"), size_t{kRows * kCols * 2});
      EXPECT_EQ(bytes_of("norm"), size_t{kCols * (4 + 2)});
    }
    std::vector<float> given(kRows * kCols);
    for (size_t i = 0; i < given.size(); ++i)
      given[i] = 0.1f * std::sin(static_cast<float>(i)) * static_cast<float>(1 + i % 7);
    for (const char* name : {"qkv", "table"}) {
      const ParameterId id = store.find(name);
      store.set(stream, id, given.data());
      store.refresh_compute(stream);
      const std::vector<float> got = values_of(store, name);
      // Half of the widest gap, 0.304 of a scale of 0.7 at most; of what is rounded half a unit.
      const float bound =
          name[0] == 'q' ? 0.16f * 0.7f : 0.7f * static_cast<float>(epsilon_of(type));
      float worst = 0;
      for (size_t i = 0; i < given.size(); ++i)
        worst = std::max(worst, std::abs(got[i] - given[i]));
      EXPECT_LE(worst, bound) << name;
      EXPECT_EQ(worst > 0, name[0] == 'q' || narrow) << name;
      store.set(stream, id, got.data());  // what it stands for is held as it is
      if (name[0] == 't') {
        EXPECT_EQ(values_of(store, name), got);
      }
    }
    copy.copy_shipped(stream, store);
    for (const char* name : {"qkv", "table", "norm"})
      EXPECT_EQ(values_of(copy, name), values_of(store, name)) << name;
  }
}

TEST(ParameterStore, GroupsByTheAxesThatGradientsAreSummedOver) {
  using enum parallel::MeshAxis;
  ParameterStore store({}, f32);
  const ParameterId norm = store.add({.name = "norm", .cols = 300});
  const ParameterId in = store.add({.name = "in", .rows = 2, .cols = 300, .shard = {{{0, tp}}}});
  const ParameterId expert = store.add({.name = "expert", .cols = 10, .shard = {{{1, ep}}}});
  const ParameterId out = store.add({.name = "out", .rows = 4, .cols = 8, .shard = {{{1, tp}}}});
  store.freeze(out);
  const auto axes = [&](ParameterId id) { return store.group_of(store.spec(id)).axes(); };
  EXPECT_EQ(axes(norm), (ParameterGroup::Axes{tp, cp, dp}));
  EXPECT_EQ(axes(in), (ParameterGroup::Axes{cp, dp}));
  EXPECT_EQ(axes(expert), ParameterGroup::Axes{edp});
  EXPECT_EQ(axes(out), (ParameterGroup::Axes{cp, dp}));
  EXPECT_EQ(store.groups().size(), 5u);  // the second, of frozen whole parameters, is empty
  EXPECT_EQ(store.group_of(store.spec(out)).kind(), ParameterGroup::Kind::frozen);
  EXPECT_EQ(store.spec(in).offset, 0);
  EXPECT_EQ(&store.trained(), &store.group_of(store.spec(norm)));
  store.allocate(ParameterStore::Purpose::training);
  EXPECT_NE(store.gradient(in), nullptr);
  EXPECT_EQ(store.gradient(out), nullptr);
}

TEST(ParameterStore, CountsPanelsInPlaceOfMastersThatHoldNothing) {
  ParameterStore store({}, f32);
  ParameterSpec matrix = random_matrix("matrix", 32, 6);
  matrix.multiplied = true;
  const ParameterId id = store.add(matrix);
  store.add({.name = "norm", .cols = 6});
  store.allocate(Purpose::inference);
  const size_t masters = store.bytes(StateArray::master, Purpose::inference);
  EXPECT_EQ(store.weight_bytes(), masters);
  store.pack(kernels::PackedType::s8);
  EXPECT_EQ(store.weight_bytes(), masters);
  const size_t panels = 2 * (2 * 64) + 32 * 8;  // of 16 rows, 4 columns a line; scales and offsets
  store.packed(id);
  EXPECT_EQ(store.weight_bytes(), masters + panels);
  const std::vector<float> values(32 * 6, 1.0f);
  store.pack(id, [&](int64_t first, int64_t, float*) { return values.data() + first * 6; });
  EXPECT_EQ(store.weight_bytes(), masters + panels - values.size() * sizeof(float));
}

// Of what a checkpoint holds a rank has its own ranges; gradients are whole until they are summed.
TEST(ParameterGroup, HoldsItsOwnRangesOfWhatIsSaved) {
  ParameterGroup group(ParameterGroup::Kind::trained, bf16, {parallel::MeshAxis::dp});
  group.add(3 * 4096);
  group.add(100);
  EXPECT_TRUE(group.owns_all());
  const std::vector<parallel::FlatRange> bucket = {{0, group.count()}};
  group.own(owned_ranges(bucket, 2, 1));
  EXPECT_FALSE(group.owns_all());
  EXPECT_EQ(group.owned()[0], (OwnedRange{2 * 4096, 3 * 4096 + 256, 0}));
  const Purpose training = Purpose::training;
  EXPECT_EQ(group.bytes(StateArray::master, training), (4096u + 256) * 4);
  EXPECT_EQ(group.bytes(StateArray::first_moment, training), (4096u + 256) * 4);
  EXPECT_EQ(group.bytes(StateArray::gradient, training), (3 * 4096u + 256) * 4);
  EXPECT_EQ(group.bytes(StateArray::compute, training), (3 * 4096u + 256) * 2);
  EXPECT_EQ(group.bytes(StateArray::average, training), 0u);
  group.own({});
  EXPECT_EQ(group.bytes(StateArray::master, training), 0u);
}

}  // namespace
}  // namespace saturate
