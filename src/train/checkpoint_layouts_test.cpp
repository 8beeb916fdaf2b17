// SPDX-License-Identifier: Apache-2.0
// Ranks of any layout write the same files, and read what ranks of any other layout wrote.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "model/hf_weights.h"
#include "model/transformer.h"
#include "parallel/lockstep.h"
#include "train/checkpoint.h"
#include "train/checkpoint_store.h"
#include "train/gathered_weights.h"
#include "train/checkpoint_state.h"

namespace saturate::train {
namespace {

using saturate::testing::read_file;
using saturate::testing::TempFolder;
using Axis = parallel::MeshAxis;

constexpr StateArray kSaved[] = {StateArray::master, StateArray::first_moment,
                                 StateArray::second_moment, StateArray::average};

struct Case {
  const char* name;
  parallel::MeshExtents extents;
  int zero = 0;
  bool offload = false;
  int ranks() const { return extents.tp * extents.cp * extents.dp * extents.pp; }
};
const Case kCases[] = {{"one", {}},
                       {"dp2", {.dp = 2}},
                       {"dp2 zero", {.dp = 2}, 1},
                       {"dp3 zero", {.dp = 3}, 1},
                       {"dp4 copies", {.dp = 4, .dp_shard = 2}, 1},
                       {"dp2 zero offload", {.dp = 2}, 1, true},
                       {"tp2", {.tp = 2}},
                       {"tp2 dp2 zero", {.tp = 2, .dp = 2}, 1},
                       {"pp3", {.pp = 3}},
                       {"tp2 pp2", {.tp = 2, .pp = 2}},
                       {"dp4 ep2 zero", {.dp = 4, .ep = 2}, 1},
                       {"tp2 cp2 pp2 zero", {.tp = 2, .cp = 2, .pp = 2}, 1}};

// GPT-2's files have matrices the other way round; tables of 101 rows are padded to 128.
model::ModelConfig config_of() {
  model::ModelConfig c = model::model_preset("gpt2-124m");
  c.d_model = 24;
  c.heads = c.kv_heads = 2;
  c.ffn = 48;
  c.decoder_layers = 2;
  c.vocab_target = 101;
  c.bos_id = c.eos_id = 1;
  c.max_positions = 16;
  model::validate(c);
  return c;
}

// Cuts of every kind: rows of packed matrices, columns, experts' rows, none.
parallel::ShardSpec cut_of(const ParameterSpec& p, const Case& c) {
  parallel::ShardSpec cut;
  if (p.rows == 1) return cut;
  const bool columns = p.name.ends_with("out.weight");
  const bool expert = p.name.find("ffn") != std::string::npos && c.extents.ep > 1;
  cut.cuts = {{.dimension = columns ? 1 : 0, .axis = expert ? Axis::ep : Axis::tp}};
  return cut;
}

void declare_all(ParameterStore& all) {
  const model::Transformer transformer(config_of(), all);
  all.freeze(all.find("decoder.final_norm.weight"));
}

// What a rank of the layout holds: its stage's parameters, parts of them, ranges of those.
ParameterStore store_of(const Case& c, const Layout& layout, DType type) {
  ParameterStore all({}, type), store({}, type);
  declare_all(all);
  for (size_t i = 0; i < all.specs().size(); ++i) {
    ParameterSpec p = all.specs()[i];
    const bool table = p.padding_rows > 0;  // a tied one is on the first and the last stage
    const int stage = layout.coordinate(Axis::pp), last = c.extents.pp - 1;
    if (table ? stage != 0 && stage != last
              : static_cast<int>(i) * c.extents.pp / std::ssize(all.specs()) != stage)
      continue;
    p.number = static_cast<int64_t>(i);
    p.shard = cut_of(p, c);
    store.add(part_of(p, layout.mesh(), layout.rank()));
  }
  if (c.offload) store.offload();
  for (ParameterGroup& group : store.groups()) {
    const parallel::Group& ranks = layout.sharers(group.axes()).sharers;
    if (c.zero == 0 || group.count() == 0 || ranks.size() == 1) continue;
    const std::vector<parallel::FlatRange> buckets = {{0, group.count()}};
    group.own(owned_ranges(buckets, ranks.size(), ranks.position(layout.rank())));
  }
  store.allocate(Purpose::averaged_training);
  return store;
}

double value_of(StateArray a, int64_t number, int64_t element) {
  return static_cast<double>((static_cast<int64_t>(a) * 64 + number) * 8192 + element) * 0.001;
}

// Calls f(what the element must hold, its memory) for all that a rank holds.
template <class T, class F>
void for_each_element(const ParameterStore& store, const F& f) {
  for (const ParameterSpec& p : store.specs()) {
    const ParameterGroup& group = store.group_of(p);
    std::vector<int64_t> whole;
    for (const parallel::ShardRun& run : p.whole.runs)
      for (int64_t i = 0; i < run.length; ++i) whole.push_back(run.global_offset + i);
    const int64_t saved = (p.whole.rows - p.padding_rows) * p.whole.cols;
    for (const StateArray a : kSaved) {
      if (!group.keeps(a, store.purpose())) continue;
      for (const OwnedRange& r : group.owned())
        for (int64_t i = std::max(r.begin, p.offset); i < std::min(r.end, p.offset + p.size());
             ++i) {
          const int64_t e = whole[static_cast<size_t>(i - p.offset)];
          f(e < saved ? static_cast<T>(value_of(a, p.number, e)) : T{0},
            group.array(a).as<T>() + r.local + i - r.begin);
        }
    }
  }
}

template <class T>
void save_as(const Case& c, DType type, const std::string& folder) {
  std::filesystem::create_directories(folder + "/training");
  parallel::run_lockstep(c.ranks(), [&](parallel::Communicator& communicator) {
    const Layout layout(communicator, c.extents);
    const Together ranks(communicator);
    const ParameterStore store = store_of(c, layout, type);
    for_each_element<T>(store, [](T value, T* at) { *at = value; });
    ParameterStore all({}, type);
    declare_all(all);
    ranks.first([&] { model::begin_hf(folder, config_of(), {}); });
    write_weights(folder, config_of(), {store, all, layout}, Stream(Device{}), ranks);
  });
}

template <class T>
void any_layout_reads_any_other(DType type) {
  const TempFolder folder;
  for (const Case& from : kCases) save_as<T>(from, type, folder / from.name);
  const std::string state = "/training/optimizer.safetensors", model = "/model.safetensors";
  for (const Case& from : kCases) {
    const std::string there = folder / from.name, one = folder / kCases[0].name;
    EXPECT_TRUE(read_file(there + state) == read_file(one + state)) << from.name;
    EXPECT_TRUE(read_file(there + model) == read_file(one + model)) << from.name;
    for (const Case& to : kCases) {
      int64_t wrong = 0, seen = 0;
      parallel::run_lockstep(to.ranks(), [&](parallel::Communicator& communicator) {
        const Layout layout(communicator, to.extents);
        ParameterStore store = store_of(to, layout, type);
        read_owned(model::SafetensorsReader(there + state), store, Stream(Device{}));
        for_each_element<T>(store, [&](T value, const T* at) {
          ++seen;
          wrong += *at != value;
        });
      });
      EXPECT_EQ(wrong, 0) << "from " << from.name << " to " << to.name;
      EXPECT_GT(seen, 4 * 10000);
    }
  }
}

TEST(CheckpointLayouts, AnyLayoutReadsAnyOtherInDoubles) {
  any_layout_reads_any_other<double>(DType::f64);
}
TEST(CheckpointLayouts, AnyLayoutReadsAnyOtherInFloats) {
  any_layout_reads_any_other<float>(DType::f32);
}

// What the first rank is given is what the files hold, and what is held stays as it is.
TEST(CheckpointLayouts, TheFirstRankGathersTheWholeWeights) {
  for (const Case& c : kCases) {
    int64_t right = 0, parameters = 0;
    parallel::run_lockstep(c.ranks(), [&](parallel::Communicator& communicator) {
      const Layout layout(communicator, c.extents);
      const ParameterStore store = store_of(c, layout, DType::f64);
      for_each_element<double>(store, [](double value, double* at) { *at = value; });
      ParameterStore all({}, DType::f64);
      declare_all(all);
      GatheredWeights weights({store, all, layout}, communicator);
      for (int twice = 0; twice < 2; ++twice) {
        weights.gather(Stream(Device{}), [&](size_t number, const void* values, size_t bytes) {
          ++parameters;
          const ParameterSpec& p = all.specs()[number];
          const auto* v = static_cast<const double*>(values);
          EXPECT_EQ(bytes,
                    static_cast<size_t>((p.rows - p.padding_rows) * p.cols) * sizeof(double));
          const StateArray a = p.frozen ? StateArray::master : StateArray::average;
          for (int64_t e = 0; e < static_cast<int64_t>(bytes / sizeof(double)); ++e)
            right += v[e] == value_of(a, static_cast<int64_t>(number), e);
        });
      }
      for_each_element<double>(store,
                               [](double value, const double* at) { ASSERT_EQ(*at, value); });
      if (communicator.rank() == 0) {
        int64_t saved = 0;
        for (const ParameterSpec& p : all.specs()) saved += (p.rows - p.padding_rows) * p.cols;
        EXPECT_EQ(right, 2 * saved) << c.name;
        EXPECT_EQ(parameters, 2 * std::ssize(all.specs()));
      }
    });
  }
}

std::string content(int64_t step) { return std::string(40'000'000, static_cast<char>('a' + step)); }

// Three ranks write thirds of a file of several hashed pieces.
void save_together(CheckpointStore& store, int64_t step, const Together& ranks, int failing = -1) {
  store.save(
      step, 0,
      [&](const std::string& folder) {
        const std::string path = folder + "/weights", text = content(step);
        ranks.first([&] {
          DurableFile file(path, text.size());
          file.commit(DurableFile::Rest::kept);
        });
        ranks.all([&] {
          if (ranks.rank() == failing) throw Error(Errc::io, "write", "no space left");
          DurableFile file(path, DurableFile::Join{});
          const size_t begin = text.size() * static_cast<size_t>(ranks.rank()) / 3;
          const size_t end = text.size() * static_cast<size_t>(ranks.rank() + 1) / 3;
          file.write_at(begin, text.data() + begin, end - begin);
          file.commit();
        });
      },
      ranks);
}

TEST(CheckpointTogether, IsWholeOrNotThereAndNamesTheRankThatCouldNotWrite) {
  const TempFolder run;
  std::vector<std::string> said(3);
  parallel::run_lockstep(3, [&](parallel::Communicator& communicator) {
    const Together ranks(communicator);
    CheckpointStore store(run.path());
    save_together(store, 1, ranks);
    for (const int failing : {0, 2}) {
      try {
        save_together(store, 2, ranks, failing);
        said[static_cast<size_t>(ranks.rank())] += "went on";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Errc::io);
        said[static_cast<size_t>(ranks.rank())] += e.what();
      }
    }
    std::vector<std::string> problems;
    EXPECT_EQ(store.newest_valid(problems, ranks)->step, 1);
    EXPECT_TRUE(problems.empty());
  });
  for (const int r : {0, 1}) {
    EXPECT_NE(said[r].find("step 2 is not saved: [rank 2] [write] no space left"),
              std::string::npos)
        << said[r];
  }
  EXPECT_NE(said[2].find("step 2 is not saved: [rank 0] [write] no space left"), std::string::npos)
      << said[2];
  EXPECT_FALSE(std::filesystem::exists(run / "checkpoints/.tmp-step-00000002"));
  EXPECT_TRUE(read_file(run / "checkpoints/step-00000001/weights") == content(1));
}

// A changed byte in any piece is seen by the rank that reads it, and known by all.
TEST(CheckpointTogether, DamageInAnyPieceIsFoundByAllRanks) {
  for (const size_t place : {size_t{5}, size_t{20'000'000}, size_t{39'999'999}}) {
    const TempFolder run;
    parallel::run_lockstep(3, [&](parallel::Communicator& communicator) {
      const Together ranks(communicator);
      CheckpointStore store(run.path());
      for (const int64_t step : {1, 2}) save_together(store, step, ranks);
      ranks.first([&] {
        DurableFile file(run / "checkpoints/step-00000002/weights", DurableFile::Join{});
        file.write_at(place, "x", 1);
        file.commit();
      });
      std::vector<std::string> problems;
      EXPECT_EQ(store.newest_valid(problems, ranks)->step, 1);
      ASSERT_EQ(problems.size(), 1u);
      EXPECT_NE(problems[0].find("weights is damaged"), std::string::npos) << problems[0];
    });
    // One process reads all of it.
    EXPECT_TRUE(CheckpointStore::damage(run / "checkpoints/step-00000002"));
    EXPECT_FALSE(CheckpointStore::damage(run / "checkpoints/step-00000001"));
  }
}

}  // namespace
}  // namespace saturate::train
