// SPDX-License-Identifier: Apache-2.0
#include "train/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"

namespace saturate::train {
namespace {

// Bit by bit, where the writer uses a table.
uint32_t crc32c_by_definition(std::string_view bytes) {
  uint32_t c = 0xFFFFFFFFu;
  for (const char b : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool differs = ((c & 1) ^ ((static_cast<uint8_t>(b) >> bit) & 1)) != 0;
      c >>= 1;
      if (differs) c ^= 0x82F63B78u;
    }
  }
  return c ^ 0xFFFFFFFFu;
}

TEST(Crc32c, OfKnownBytes) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);              // RFC 3720 check value
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);    // RFC 3720 B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);  // RFC 3720 B.4
  EXPECT_EQ(crc32c(""), 0u);
}

template <class Word>
Word read_word(std::string_view bytes) {
  Word word{};
  if (bytes.size() < sizeof word) throw std::runtime_error("short word");
  std::memcpy(&word, bytes.data(), sizeof word);
  return word;
}

// One protobuf message, one level: field number -> values. Bytes of scalars stay raw.
std::multimap<uint64_t, std::string> decode(std::string_view bytes) {
  std::multimap<uint64_t, std::string> fields;
  const auto take = [&](size_t n) {
    if (n > bytes.size()) throw std::runtime_error("short message");
    const std::string part(bytes.substr(0, n));
    bytes.remove_prefix(n);
    return part;
  };
  const auto take_varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto b = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(b & 0x7F) << shift;
      if (b < 0x80) return value;
    }
  };
  while (!bytes.empty()) {
    const uint64_t key = take_varint();
    switch (key & 7) {
      case 0:
        fields.emplace(key >> 3, std::to_string(take_varint()));
        break;
      case 1:
        fields.emplace(key >> 3, take(8));
        break;
      case 2:
        fields.emplace(key >> 3, take(take_varint()));
        break;
      case 5:
        fields.emplace(key >> 3, take(4));
        break;
      default:
        throw std::runtime_error("wire type");
    }
  }
  return fields;
}

std::string only(const std::multimap<uint64_t, std::string>& fields, uint64_t number) {
  if (fields.count(number) != 1) throw std::runtime_error("field " + std::to_string(number));
  return fields.find(number)->second;
}

uint32_t masked(std::string_view bytes) {
  const uint32_t c = crc32c_by_definition(bytes);
  return (c >> 15 | c << 17) + 0xA282EAD8u;
}

class TensorBoard : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The messages of the one file in the folder, with lengths and checksums verified.
  std::vector<std::multimap<uint64_t, std::string>> events() const {
    const auto file = std::filesystem::directory_iterator(folder_)->path();
    EXPECT_EQ(file.filename().string().rfind("events.out.tfevents.", 0), 0u);
    std::ifstream in(file, std::ios::binary);
    const std::string all = (std::stringstream() << in.rdbuf()).str();
    std::vector<std::multimap<uint64_t, std::string>> result;
    for (std::string_view rest = all; !rest.empty();) {
      const auto length = read_word<uint64_t>(rest);
      EXPECT_EQ(read_word<uint32_t>(rest.substr(8)), masked(rest.substr(0, 8)));
      const std::string_view message = rest.substr(12, length);
      EXPECT_EQ(message.size(), length);
      EXPECT_EQ(read_word<uint32_t>(rest.substr(12 + length)), masked(message));
      result.push_back(decode(message));
      rest.remove_prefix(16 + length);
    }
    return result;
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("saturate_tensorboard_" + std::to_string(getpid()));
};

TEST_F(TensorBoard, ScalarsAndTextComeBack) {
  TensorBoardLog log(folder_ / "");
  TrainRow row;
  row.step = 1234567;
  row.loss = 3.25;
  row.learning_rate = 1e-3;
  log.write(row);
  log.write(SampleRow{300, 1, "ein Hund", "a <b>dog</b>", "the\ndog"});
  log.write(RunHeader{0, "", {{"model.layers", "6"}}, {}});

  const auto all = events();
  ASSERT_EQ(all.size(), 1u + 2 + 1 + 1);  // what was not measured is left out
  EXPECT_EQ(only(all[0], 3), "brain.Event:2");
  EXPECT_GT(read_word<double>(only(all[0], 1)), 1.7e9);
  EXPECT_EQ(only(all[1], 2), "1234567");
  const auto loss = decode(only(decode(only(all[1], 5)), 1));
  EXPECT_EQ(only(loss, 1), "train/loss");
  EXPECT_EQ(read_word<float>(only(loss, 2)), 3.25f);
  const auto rate = decode(only(decode(only(all[2], 5)), 1));
  EXPECT_EQ(only(rate, 1), "train/learning_rate");
  EXPECT_EQ(read_word<float>(only(rate, 2)), 1e-3f);

  EXPECT_EQ(only(all[3], 2), "300");
  const auto sample = decode(only(decode(only(all[3], 5)), 1));
  EXPECT_EQ(only(sample, 1), "sample/1");
  EXPECT_EQ(only(decode(only(decode(only(sample, 9)), 1)), 1), "text");
  const auto tensor = decode(only(sample, 8));
  EXPECT_EQ(only(tensor, 1), "7");
  EXPECT_EQ(only(decode(only(decode(only(tensor, 2)), 2)), 1), "1");
  EXPECT_EQ(only(tensor, 8),
            "source\n\n    ein Hund\n\nhypothesis\n\n    a <b>dog</b>\n\n"
            "reference\n\n    the\n    dog\n\n");
  const auto config = decode(only(decode(only(all[4], 5)), 1));
  EXPECT_EQ(only(decode(only(config, 8)), 8), "    model.layers = 6\n    \n\n");
}

TEST_F(TensorBoard, ResumeForgetsLaterSteps) {
  { TensorBoardLog log(folder_, 500); }
  const auto all = events();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(only(all[1], 2), "501");
  EXPECT_EQ(only(decode(only(all[1], 7)), 1), "1");  // SessionLog START
}

TEST(TensorBoardErrors, FolderThatCannotBe) {
  EXPECT_THROW(TensorBoardLog("/dev/null/folder"), Error);
}

}  // namespace
}  // namespace saturate::train
