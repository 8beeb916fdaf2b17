// SPDX-License-Identifier: Apache-2.0
#include "model/torch_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"

namespace saturate::model {
namespace {

std::string file(const char* name) {
  std::ifstream in(std::string(SATURATE_SOURCE_DIR "/tests/checkpoints/") + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::vector<TensorView> parse(const std::string& bytes) {
  return parse_torch_file(std::as_bytes(std::span(bytes)), "weights");
}
std::string refusal(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "none";
}

// In the form before PyTorch 1.6: magic number, version and machine, then what is under test.
std::string old_file(const std::string& pickle) {
  const std::string number = std::string("\x80\x02K\x01.", 5);
  return number + number + number + pickle;
}

TEST(TorchFile, ReadsWhatTorchSaved) {
  const std::string bytes = file("marian-bin-half/pytorch_model.bin");
  const std::vector<TensorView> tensors = parse(bytes);
  ASSERT_FALSE(tensors.empty());
  bool found = false;
  for (const TensorView& t : tensors) {
    EXPECT_EQ(t.dtype, "F16") << t.name;
    found = found || (t.name == "model.shared.weight" && t.shape == std::vector<int64_t>{41, 8});
  }
  EXPECT_TRUE(found);
}

// Every prefix, and every byte changed: refused, or read from within the file.
TEST(TorchFile, DamageNeverReadsOutside) {
  const std::string whole = file("marian-bin-half/pytorch_model.bin");
  for (size_t size = 0; size < whole.size(); size += 97)
    EXPECT_NE(refusal(whole.substr(0, size)), "none");
  for (size_t at = 0; at < whole.size(); at += 13) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x5A);
    try {
      for (const TensorView& t : parse(damaged)) {
        const auto* end = reinterpret_cast<const std::byte*>(damaged.data() + damaged.size());
        EXPECT_LE(t.data + t.bytes, end);
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument) << e.what();
    }
  }
}

TEST(TorchFile, RunsNothing) {
  // os.system("true")
  const std::string call =
      std::string("\x80\x02") + "cos\nsystem\nX\x04" + std::string(3, '\0') + "true\x85R.";
  EXPECT_NE(refusal(old_file(call)).find("names os.system"), std::string::npos);
  EXPECT_NE(refusal(old_file("i")).find("instruction 0x69"), std::string::npos);
  EXPECT_NE(refusal(old_file("}K\x01K\x01s.].")).find("a key"), std::string::npos);
  // A dictionary that holds itself: refused as no tensor, and nothing is walked for ever.
  const std::string itself = std::string("}q\x05X\x01") + std::string(3, '\0') + "ah\x05s.].";
  EXPECT_NE(refusal(old_file(itself)).find("is no tensor"), std::string::npos);
  EXPECT_NE(refusal("").find("beyond its end"), std::string::npos);
}

}  // namespace
}  // namespace saturate::model
