// SPDX-License-Identifier: Apache-2.0
#include "model/npz_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/npz_bytes_test.h"

namespace saturate::model {
namespace {

using Unpacked = std::deque<std::vector<std::byte>>;

std::vector<TensorView> parse(const std::string& bytes, Unpacked& unpacked) {
  return parse_npz(std::as_bytes(std::span(bytes)), "file.npz", unpacked);
}
std::string refusal(const std::string& bytes) {
  Unpacked unpacked;
  try {
    parse(bytes, unpacked);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "none";
}

const std::vector<float> kValues = {1, 2, 3, 4, 5, 6};

std::vector<NpyEntry> two() {
  return {{"W", "<f4", "(2, 3)", float_bytes(kValues)},
          {"special:model.yml", "|i1", "(4,)", "a: b"}};
}

TEST(NpzFile, ReadsStoredAndDeflatedArrays) {
  for (const bool compressed : {false, true}) {
    const std::string bytes = npz_bytes(two(), compressed);
    Unpacked unpacked;
    const std::vector<TensorView> t = parse(bytes, unpacked);
    ASSERT_EQ(t.size(), 2u);
    EXPECT_EQ(t[0].name, "W");
    EXPECT_EQ(t[0].shape, (std::vector<int64_t>{2, 3}));
    std::vector<float> values(6);
    read_floats(t[0], 0, values);
    EXPECT_EQ(values, kValues);
    EXPECT_EQ(t[1].dtype, "I8");
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(t[1].data), t[1].bytes), "a: b");
    EXPECT_EQ(unpacked.size(), compressed ? 2u : 0u);
  }
}

TEST(NpzFile, RefusesWhatIsNoArrayOfNumbers) {
  const std::string data = float_bytes(kValues);
  const auto one = [&](const char* descr, const char* shape) {
    return refusal(npz_bytes({{"W", descr, shape, data}}));
  };
  EXPECT_NE(one(">f4", "(2, 3)").find("type >f4"), std::string::npos);
  EXPECT_NE(one("|O", "(2, 3)").find("type |O"), std::string::npos);
  EXPECT_NE(one("<f4", "(2, 4)").find("(2, 4) of F32 needs 32 bytes and has 24"),
            std::string::npos);
  EXPECT_NE(one("<f4", "(-2, 3)").find("damaged shape"), std::string::npos);
  EXPECT_NE(one("<f4", "(4611686018427387904, 4611686018427387904)").find("does not exist"),
            std::string::npos);
  std::string columns = npz_bytes(two());
  columns.replace(columns.find("False"), 5, "True ");
  EXPECT_NE(refusal(columns).find("stored by columns"), std::string::npos);
  EXPECT_NE(refusal("PK").find("no directory"), std::string::npos);
}

// Every prefix, and every byte changed, of both forms.
TEST(NpzFile, DamageIsRefusedOrReadFromWithin) {
  for (const bool compressed : {false, true}) {
    const std::string whole = npz_bytes(two(), compressed);
    for (size_t size = 0; size < whole.size(); ++size)
      EXPECT_NE(refusal(whole.substr(0, size)), "none");
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x5A);
      Unpacked unpacked;
      try {
        for (const TensorView& t : parse(damaged, unpacked)) {
          const auto* const end =
              reinterpret_cast<const std::byte*>(damaged.data() + damaged.size());
          EXPECT_TRUE(!unpacked.empty() || t.data + t.bytes <= end);
        }
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Errc::invalid_argument) << e.what();
      }
    }
  }
  // What was deflated has a checksum.
  std::string damaged = npz_bytes({{"W", "<f4", "(2, 3)", float_bytes(kValues)}}, true);
  damaged[damaged.size() - 22 - 46 - 5 + 16] ^= 1;  // in its record of the directory
  EXPECT_NE(refusal(damaged).find("damaged"), std::string::npos);
}

}  // namespace
}  // namespace saturate::model
