// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate::train {
namespace {

using model::SafetensorsReader;
using model::SafetensorsWriter;
using saturate::testing::read_file;
using saturate::testing::TempFolder;

constexpr DType f32 = DType::f32, f64 = DType::f64;
constexpr StateArray kSaved[] = {StateArray::master, StateArray::first_moment,
                                 StateArray::second_moment, StateArray::average};

// Three parameters over several blocks of the norm, ends inside.
void add_all(ParameterStore& store) {
  store.add({.name = "table", .rows = 150, .cols = 70});
  store.add({.name = "norm", .cols = 70});
  store.add({.name = "out", .rows = 70, .cols = 100});
}

// What element e of a parameter holds in an array: exact in f32.
double value_of(StateArray a, size_t parameter, int64_t e) {
  return static_cast<double>(
      (static_cast<int64_t>(a) * 8 + static_cast<int64_t>(parameter) + 1) * 16384 + e);
}

// Calls f(element of the parameter, its memory) for all that a rank holds of one array.
template <class T, class F>
void for_each_held(const ParameterStore& store, StateArray a, const ParameterSpec& p, const F& f) {
  for (const OwnedRange& r : store.group_of(p).owned()) {
    for (int64_t i = std::max(r.begin, p.offset); i < std::min(r.end, p.offset + p.size()); ++i)
      f(i - p.offset, store.group_of(p).array(a).as<T>() + r.local + i - r.begin);
  }
}

template <class T>
void fill(const ParameterStore& store) {
  for (const StateArray a : kSaved) {
    for (size_t i = 0; i < store.specs().size(); ++i) {
      const ParameterSpec& p = store.specs()[i];
      if (!store.group_of(p).keeps(a, store.purpose())) continue;
      for_each_held<T>(store, a, p,
                       [&](int64_t e, T* at) { *at = static_cast<T>(value_of(a, i, e)); });
    }
  }
}

// Elements that are what fill() wrote.
template <class T>
int64_t check(const ParameterStore& store) {
  int64_t right = 0;
  for (const StateArray a : kSaved) {
    for (size_t i = 0; i < store.specs().size(); ++i) {
      const ParameterSpec& p = store.specs()[i];
      if (!store.group_of(p).keeps(a, store.purpose())) continue;
      for_each_held<T>(store, a, p, [&](int64_t e, const T* at) {
        if (*at == static_cast<T>(value_of(a, i, e))) ++right;
      });
    }
  }
  return right;
}

void write(const std::string& path, const ParameterStore& store) {
  const auto tensors = state_tensors(store, store.purpose());
  SafetensorsWriter file(path, tensors);
  write_owned(file, tensors, store, Stream(Device{}));
  file.commit();
}

// As versions before the groups wrote it: four whole arrays one after the other, every parameter
// with moments and average.
void write_as_before(const std::string& path, const ParameterStore& store) {
  std::vector<model::TensorSpec> tensors;
  for (const StateArray a : kSaved) {
    for (const ParameterSpec& p : store.specs())
      tensors.push_back({std::string(saved_name(a)) + "/" + p.name, "F32", {p.rows, p.cols}});
  }
  SafetensorsWriter file(path, tensors);
  for (const StateArray a : kSaved) {
    for (size_t i = 0; i < store.specs().size(); ++i) {
      std::vector<float> values;
      for (int64_t e = 0; e < store.specs()[i].size(); ++e)
        values.push_back(static_cast<float>(value_of(a, i, e)));
      file.write(values);
    }
  }
  file.commit();
}

TEST(StateFile, IsByteForByteThatOfEarlierVersions) {
  const TempFolder folder;
  ParameterStore store({}, f32);
  add_all(store);
  store.allocate(Purpose::averaged_training);
  fill<float>(store);
  write(folder / "new", store);
  write_as_before(folder / "old", store);
  EXPECT_EQ(read_file(folder / "new"), read_file(folder / "old"));
  EXPECT_EQ(SafetensorsWriter::file_bytes(state_tensors(store, store.purpose())),
            read_file(folder / "new").size());
}

TEST(StateFile, ReadsMomentsOfFrozenParametersAndWritesNone) {
  const TempFolder folder;
  ParameterStore store({}, f32);
  add_all(store);
  store.freeze(store.find("norm"));
  store.allocate(Purpose::averaged_training);
  write_as_before(folder / "old", store);
  read_owned(SafetensorsReader(folder / "old"), store, Stream(Device{}));
  EXPECT_EQ(check<float>(store), 4 * store.trainable_count() + 70);
  write(folder / "new", store);
  const SafetensorsReader file(folder / "new");
  EXPECT_EQ(file.tensors().size(), 4u * 2 + 1);
  EXPECT_NE(file.find("master/norm"), nullptr);
  EXPECT_EQ(file.find("m/norm"), nullptr);
}

// Any number of ranks writes the same file, each its own ranges; any other number reads it.
TEST(StateFile, RanksWriteAndReadTheirOwnRanges) {
  const TempFolder folder;
  const auto of_rank = [](int ranks, int rank) {
    ParameterStore store({}, f32);
    add_all(store);
    const std::vector<parallel::FlatRange> buckets = {{2 * 4096, store.padded_count()},
                                                      {0, 2 * 4096}};
    store.trained().own(owned_ranges(buckets, ranks, rank));
    store.allocate(Purpose::averaged_training);
    return store;
  };
  ParameterStore whole = of_rank(1, 0);
  fill<float>(whole);
  write(folder / "whole", whole);
  for (const int ranks : {1, 2, 4, 7}) {
    const std::string path = folder / std::to_string(ranks);
    const auto tensors = state_tensors(whole, whole.purpose());
    SafetensorsWriter file(path, tensors);
    for (int rank = ranks; rank-- > 0;) {
      const ParameterStore store = of_rank(ranks, rank);
      fill<float>(store);
      write_owned(file, tensors, store, Stream(Device{}));
    }
    file.commit();
    EXPECT_EQ(read_file(path), read_file(folder / "whole")) << ranks << " ranks";
    int64_t right = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      ParameterStore store = of_rank(ranks, rank);
      read_owned(SafetensorsReader(folder / "whole"), store, Stream(Device{}));
      right += check<float>(store);
    }
    EXPECT_EQ(right, 4 * whole.count()) << ranks << " ranks";
  }
}

// They have no meaning, and how many there are depends on the layout.
TEST(StateFile, RowsThatPadAVocabularyAreNotSaved) {
  const TempFolder folder;
  const auto table = [](int64_t padding) {
    ParameterStore store({}, f32);
    store.add({.name = "table", .rows = 101 + padding, .cols = 7, .padding_rows = padding});
    store.allocate(Purpose::training);
    return store;
  };
  ParameterStore of_64 = table(27), of_128 = table(27), of_earlier = table(27);
  fill<float>(of_64);
  write(folder / "file", of_64);
  const SafetensorsReader file(folder / "file");
  EXPECT_EQ(file.find("master/table")->shape, (std::vector<int64_t>{101, 7}));
  read_owned(file, of_128, Stream(Device{}));
  const float* w = of_128.masters().as<float>();
  for (int64_t e = 0; e < 128 * 7; ++e)
    ASSERT_EQ(w[e], e < 101 * 7 ? static_cast<float>(value_of(StateArray::master, 0, e)) : 0) << e;
  // Earlier versions wrote them.
  ParameterStore before({}, f32);
  before.add({.name = "table", .rows = 128, .cols = 7});
  before.allocate(Purpose::training);
  fill<float>(before);
  write(folder / "before", before);
  read_owned(SafetensorsReader(folder / "before"), of_earlier, Stream(Device{}));
  EXPECT_EQ(0, std::memcmp(of_earlier.masters().data(), w, 128 * 7 * sizeof(float)));
}

TEST(StateFile, HoldsDoublesAsTheyAre) {
  const TempFolder folder;
  ParameterStore from({}, f64), to({}, f64), narrow({}, f32);
  for (ParameterStore* s : {&from, &to, &narrow}) {
    add_all(*s);
    s->allocate(Purpose::training);
  }
  fill<double>(from);
  from.masters().as<double>()[5] = 1.0 / 3.0;  // no float
  write(folder / "file", from);
  read_owned(SafetensorsReader(folder / "file"), to, Stream(Device{}));
  EXPECT_EQ(to.masters().as<double>()[5], 1.0 / 3.0);
  EXPECT_EQ(check<double>(to), 3 * to.count() - 1);
  EXPECT_THROW(read_owned(SafetensorsReader(folder / "file"), narrow, Stream(Device{})), Error);
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "accepted";
}

TEST(StateFile, RefusesWhatDoesNotFitOrIsNotFinite) {
  const TempFolder folder;
  const Stream stream(Device{});
  ParameterStore plain({}, f32), averaged({}, f32), other({}, f32);
  add_all(plain);
  add_all(averaged);
  other.add({.name = "table", .rows = 151, .cols = 70});
  plain.allocate(Purpose::training);
  averaged.allocate(Purpose::averaged_training);
  other.allocate(Purpose::training);
  write(folder / "file", plain);
  const SafetensorsReader file(folder / "file");
  EXPECT_NE(refusal([&] { read_owned(file, averaged, stream); }).find("average/table is missing"),
            std::string::npos);
  EXPECT_NE(refusal([&] { read_owned(file, other, stream); }).find("F32 (150, 70)"),
            std::string::npos);
  static_cast<float*>(plain.master(plain.find("out")))[6999] =
      std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(refusal([&] { write(folder / "bad", plain); }).find("out holds nan"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "bad"));
  // In a file that somebody else wrote.
  std::vector<model::TensorSpec> tensors = state_tensors(plain, plain.purpose());
  SafetensorsWriter hostile(folder / "nan", tensors);
  for (size_t t = 0; t < tensors.size(); ++t) {
    std::vector<float> values(static_cast<size_t>(tensors[t].shape[0] * tensors[t].shape[1]));
    if (t == 2) values.back() = INFINITY;
    hostile.write(values);
  }
  hostile.commit();
  const SafetensorsReader bad(folder / "nan");
  EXPECT_NE(refusal([&] { read_owned(bad, plain, stream); }).find("not finite"), std::string::npos);
}

}  // namespace
}  // namespace saturate::train
