// SPDX-License-Identifier: Apache-2.0
#include "base/durable_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate {
namespace {

using testing::read_file;
using testing::TempFolder;
using testing::write_file;

TEST(DurableFile, KeepsTheOldContentUntilCommit) {
  const TempFolder folder;
  const std::string path = folder / "file";
  write_durable_file(path, "old");
  {
    DurableFile file(path);
    file.write("new!", 4);
    EXPECT_EQ(read_file(path), "old");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  DurableFile file(path, 100);  // more reserved than written
  file.write("new!", 4);
  file.commit();
  EXPECT_EQ(read_file(path), "new!");
}

// As `-o /dev/null` of a privileged user would otherwise do.
TEST(DurableFile, ReplacesNoDevice) {
  const TempFolder folder;
  const std::string path = folder / "null";
  std::filesystem::create_symlink("/dev/null", path);
  write_durable_file(path, "gone");
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(DurableFile, TellsOfAFullDiskAndKeepsTheOldFile) {
  const TempFolder folder;
  const std::string path = folder / "file";
  write_durable_file(path, "old");
  // /dev/full takes any open and refuses every write with ENOSPC.
  std::filesystem::create_symlink("/dev/full", path + ".tmp");
  try {
    write_durable_file(path, "newer");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::io);
    const std::string what = e.what();
    EXPECT_NE(what.find("No space left"), std::string::npos) << what;
    EXPECT_NE(what.find("5 bytes needed"), std::string::npos) << what;
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_FALSE(std::filesystem::is_symlink(path + ".tmp"));
}

TEST(DurableFile, NamesAFolderThatIsMissing) {
  EXPECT_THROW(write_durable_file("/nonexistent/folder/file", "x"), Error);
  EXPECT_THROW(sync_folder("/nonexistent/folder"), Error);
}

}  // namespace
}  // namespace saturate
