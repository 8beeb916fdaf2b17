// SPDX-License-Identifier: Apache-2.0
#include "train/shortlist_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"

namespace saturate::train {
namespace {

using Ids = std::vector<int32_t>;

// In the tests a small letter or _ stands for its piece in the vocabulary of bytes.
std::string spelt(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool stands = (c >= 'a' && c <= 'z') || c == '_';
    out += stands ? fmt::format("<0x{:02X}>", static_cast<int>(c)) : std::string{c};
  }
  return out;
}

class ShortlistFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("shortlist_" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& text) const {
    const std::string path = folder_ / "table";
    std::ofstream(path, std::ios::binary) << spelt(text);
    return path;
  }
  int32_t id(const std::string& piece) const {
    const auto& all = pieces_.pieces();
    return static_cast<int32_t>(std::ranges::find(all, spelt(piece)) - all.begin());
  }
  // With the two that are always there.
  Ids ids(std::initializer_list<const char*> names) const {
    Ids found{pieces_.eos_id(), pieces_.unk_id()};
    for (const char* n : names) found.push_back(id(n));
    std::ranges::sort(found);
    return found;
  }
  const data::Tokenizer pieces_ = data::Tokenizer::bytes();
  std::filesystem::path folder_;
};

TEST_F(ShortlistFile, ReadsVmap) {
  const auto list = read_shortlist(write("\te t\na\tb c\na b\td\nc\t\n"), pieces_, pieces_);
  EXPECT_EQ(list->candidates({}), ids({"e", "t"}));
  EXPECT_EQ(list->candidates(Ids{id("a")}), ids({"b", "c", "e", "t"}));
  EXPECT_EQ(list->candidates(Ids{id("a"), id("b")}), ids({"b", "c", "d", "e", "t"}));
}

TEST_F(ShortlistFile, ReadsAndPrunesMariansAsMarianDoes) {
  const auto list =
      read_shortlist(write("x a 0.5\ny a 0.3\nz a 0.15\nw a 0\nNULL a 0.9\nq NULL 0.9\nv b 0.2\n"),
                     pieces_, pieces_, {.first = 0, .best = 2});
  // One vocabulary: the source's own pieces too.
  EXPECT_EQ(list->candidates(Ids{id("a")}), ids({"a", "x", "y"}));
  EXPECT_EQ(list->candidates(Ids{id("b")}), ids({"b", "v"}));
  const auto first = read_shortlist(write("x a 0.5\n"), pieces_, pieces_, {.first = 5});
  EXPECT_EQ(first->candidates({}), (Ids{0, 1, 2, 3, 4}));
}

TEST_F(ShortlistFile, RefusesWhatItCannotUse) {
  const auto refused = [&](const std::string& text, const std::string& part) {
    try {
      read_shortlist(write(text), pieces_, pieces_);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused("x a 0.5\nx a\n", "table:2");
  refused("x a 0.5%\n", "PROBABILITY");
  refused("a\tb\nc d\n", "table:2");
  refused("foo\tbar baz\n", "another model");
  refused("", "table");
}

TEST_F(ShortlistFile, MakesADictionary) {
  // Each letter's translation is the letter after it, in any order, beside _ in every line.
  std::mt19937 random(3);
  std::vector<Ids> source, target;
  for (int i = 0; i < 300; ++i) {
    Ids s, t{id("_")};
    for (size_t n = 2 + random() % 4; n > 0; --n) {
      const auto letter = static_cast<int32_t>(random() % 20);
      s.push_back(id("a") + letter);
      t.push_back(id("a") + letter + 1);
    }
    std::ranges::shuffle(t, random);
    source.push_back(s);
    target.push_back(t);
  }
  const auto lines =
      make_shortlist(source, target, pieces_, pieces_, {.common = 1, .best = 1, .rounds = 6});
  ASSERT_EQ(lines.size(), 21u);
  EXPECT_EQ(lines[0], spelt("\t_"));
  for (int32_t i = 0; i < 20; ++i) {
    const auto letter = static_cast<char>('a' + i);
    EXPECT_EQ(lines[static_cast<size_t>(i) + 1],
              spelt(std::string{letter} + "\t" + static_cast<char>(letter + 1)));
  }
  const std::string path = folder_ / "made";
  std::ofstream file(path);
  for (const std::string& line : lines) file << line << '\n';
  file.close();
  EXPECT_EQ(read_shortlist(path, pieces_, pieces_)->candidates(Ids{id("c")}), ids({"_", "d"}));
  EXPECT_THROW(make_shortlist(source, {}, pieces_, pieces_), Error);
}

}  // namespace
}  // namespace saturate::train
