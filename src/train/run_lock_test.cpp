// SPDX-License-Identifier: Apache-2.0
#include "train/run_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

TEST(RunLock, GoesWithItsFileAndAFolderThatStayedEmpty) {
  const TempFolder root;
  const std::string made = root.path() + "/runs/made", mine = root.path() + "/mine";
  { const RunLock lock(made); }
  EXPECT_FALSE(fs::exists(made));
  fs::create_directory(mine);
  { const RunLock lock(mine); }
  EXPECT_TRUE(fs::is_empty(mine)) << "its file is gone, the folder was there before";
  {
    const RunLock lock(made);
    std::ofstream(made + "/written");
  }
  EXPECT_TRUE(fs::exists(made + "/written"));
  EXPECT_FALSE(fs::exists(made + "/run.lock"));
}

TEST(RunLock, OfALiveRunStays) {
  const TempFolder root;
  std::optional<RunLock> held(root.path());
  try {
    const RunLock second(root.path());
    FAIL() << "locked twice";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("in use by process"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(held->in_place());
  RunLock moved(std::move(*held));
  held.reset();
  EXPECT_TRUE(moved.in_place()) << "what it was moved from holds nothing";
}

// Threads open the file anew, as processes do, and find each other's removed files.
TEST(RunLock, HasOneHolderHoweverManyComeAndGo) {
  const TempFolder root;
  const std::string folder = root.path() + "/run";
  std::atomic<int> holders{0}, most{0}, locked{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 300; ++k) {
        try {
          const RunLock lock(folder);
          const int now = ++holders;
          if (now > 1) most = now;
          ++locked;
          --holders;
        } catch (const Error&) {
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(most, 0);
  EXPECT_GT(locked, 0);
}

}  // namespace
}  // namespace saturate::train
