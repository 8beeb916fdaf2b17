// SPDX-License-Identifier: Apache-2.0
#include "train/run_output.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate::train {
namespace {

using testing::TempFolder;

class RunOutputModel : public ::testing::Test {
 protected:
  RunOutput output() {
    config_.out = folder_.path() + "/run";
    return RunOutput(config_, [this] { ++reports_; });
  }
  std::string model() const {
    std::ostringstream text;
    text << std::ifstream(config_.out + "/model/config.json").rdbuf();
    return text.str();
  }
  static RunOutput::Write writes(const char* text) {
    return [text](const std::string& folder) { std::ofstream(folder + "/config.json") << text; };
  }
  TempFolder folder_;
  RunConfig config_;
  int reports_ = 0;
};

TEST_F(RunOutputModel, IsWrittenWhileTheCallerGoesOn) {
  RunOutput out = output();
  std::promise<void> go;
  out.begin_model(1, [&, ready = go.get_future().share()](const std::string& folder) {
    ready.wait();  // for ever, if begin_model() waited for this
    writes("first")(folder);
  });
  EXPECT_EQ(model(), "");
  go.set_value();
  EXPECT_TRUE(out.join_model());
  EXPECT_EQ(model(), "first");
  EXPECT_TRUE(out.join_model()) << "nothing was begun";
  EXPECT_EQ(reports_, 0);
}

TEST_F(RunOutputModel, ThatCannotBeWrittenLeavesTheOneBefore) {
  for (const int keep_best : {1, 0}) {
    config_.checkpoint.keep_best = keep_best;
    reports_ = 0;
    RunOutput out = output();
    out.begin_model(1, writes("first"));
    ASSERT_TRUE(out.join_model());
    out.begin_model(2, [](const std::string& folder) {
      writes("torn")(folder);
      throw Error(Errc::io, "test", "the disk is full");
    });
    EXPECT_EQ(reports_, 0) << "reported by the thread that draws progress only";
    EXPECT_FALSE(out.join_model());
    EXPECT_EQ(reports_, 1);
    EXPECT_EQ(model(), "first");
    out.begin_model(3, [](const std::string&) {
      throw Error(Errc::invalid_argument, "test", "not of the file system");
    });
    EXPECT_THROW(out.join_model(), Error);
    EXPECT_EQ(model(), "first");
    out.begin_model(4, writes("fourth"));
    EXPECT_TRUE(out.join_model());
    EXPECT_EQ(model(), "fourth");
    std::filesystem::remove_all(config_.out);
  }
}

}  // namespace
}  // namespace saturate::train
