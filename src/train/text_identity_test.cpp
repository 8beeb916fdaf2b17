// SPDX-License-Identifier: Apache-2.0
#include "train/text_identity.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "train/corpora.h"

namespace saturate::train {
namespace {

using saturate::testing::TempFolder;
using saturate::testing::write_file;

class TextIdentityTest : public ::testing::Test {
 protected:
  TextIdentityTest() {
    config_.out = folder_.path() + "/run";
    config_.data.train = {folder_.path() + "/a", folder_.path() + "/b"};
    config_.data.valid = {folder_.path() + "/v"};
    for (const char* name : {"a", "b", "v"})
      write_file(folder_.path() + "/" + name, std::string(300000, 'x') + name);
  }

  std::string refusal(const TextIdentity& before) const {
    try {
      check_same_text(before, text_identity(config_), config_);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  TempFolder folder_;
  RunConfig config_;
};

TEST_F(TextIdentityTest, SurvivesTheStateOfACheckpoint) {
  const TextIdentity now = text_identity(config_);
  const Json state{{"texts", to_json(now)}};
  EXPECT_EQ(text_identity_from(parse_json(state.dump(), "state"), "state"), now);
  EXPECT_EQ(text_identity_from(parse_json("{}", "state"), "state"), TextIdentity{});
  EXPECT_THROW(text_identity_from(parse_json(R"({"texts": {"train": [1]}})", "state"), "state"),
               Error);
}

TEST_F(TextIdentityTest, NamesTheFileThatIsAnother) {
  const TextIdentity before = text_identity(config_);
  EXPECT_EQ(refusal(before), "");
  write_file(folder_.path() + "/b", std::string(300000, 'x') + "c");  // one byte, as many as before
  EXPECT_NE(refusal(before).find("/b: it was 300001 bytes"), std::string::npos) << refusal(before);
  config_.data.train.pop_back();
  EXPECT_NE(refusal(before).find("had 2 training files and now has 1"), std::string::npos);
  EXPECT_EQ(refusal({}), "") << "an earlier version said nothing of its text";
}

TEST_F(TextIdentityTest, OfWhatCanBeReadOnceTheCopyCounts) {
  const TextIdentity before = text_identity(config_);
  const std::string copy = copy_of_text(config_.out, "train", 0, config_.data.train[0]);
  std::filesystem::create_directories(config_.out + "/data");
  std::filesystem::rename(config_.data.train[0], copy);
  EXPECT_EQ(text_identity(config_), before);
}

TEST_F(TextIdentityTest, ScoresCompareByTextAndMetric) {
  const TextIdentity before = text_identity(config_);
  EXPECT_TRUE(judges_alike(before, before));
  config_.validate.metric = "chrf";
  EXPECT_FALSE(judges_alike(before, text_identity(config_)));
  EXPECT_TRUE(judges_alike({}, text_identity(config_)));
}

}  // namespace
}  // namespace saturate::train
