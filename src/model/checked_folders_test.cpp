// SPDX-License-Identifier: Apache-2.0
// A folder that was found whole is not read again, and is as soon as anything about its files is new.
#include "model/checked_folders.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "model/folder_manifest.h"

namespace saturate::model {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytes = int64_t{17} << 20;

// Bytes that this process has asked the system for with read().
int64_t bytes_read() {
  std::ifstream in("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  in >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

bool reads_all(const std::string& folder) {
  const int64_t before = bytes_read();
  check_model_files(folder);
  return bytes_read() - before >= kBytes;
}

// One byte, and the time of the last write as it was.
void change_behind_the_back(const fs::path& file) {
  struct stat before {};
  ASSERT_EQ(::stat(file.c_str(), &before), 0);
  const int fd = ::open(file.c_str(), O_WRONLY);
  ASSERT_EQ(::pwrite(fd, "!", 1, kBytes / 2), 1);
  ::close(fd);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
}

void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(2100)); }

TEST(CheckedFolders, AreReadOnceForEachStateOfTheirFiles) {
  const testing::TempFolder temp;
  const fs::path folder = fs::path(temp.path()) / "model";
  fs::create_directories(folder);
  const std::string cache = temp.path() + "/cache";
  ::setenv("SATURATE_CACHE", cache.c_str(), 1);
  {
    std::ofstream out(folder / "model.safetensors", std::ios::binary);
    out << std::string(static_cast<size_t>(kBytes), 'w');
  }
  write_manifest(folder.string(), 1);
  EXPECT_TRUE(reads_all(folder.string()));
  EXPECT_FALSE(fs::exists(cache)) << "files that have just been written may change unseen";
  settle();
  EXPECT_TRUE(reads_all(folder.string()));
  EXPECT_FALSE(reads_all(folder.string()));
  EXPECT_FALSE(reads_all((folder / ".." / "model").string())) << "the same folder by another name";
  fs::copy(folder, fs::path(temp.path()) / "copy");
  EXPECT_TRUE(reads_all(temp.path() + "/copy")) << "another folder";

  change_behind_the_back(folder / "model.safetensors");
  EXPECT_THROW(check_model_files(folder.string()), Error);
  settle();
  EXPECT_THROW(check_model_files(folder.string()), Error) << "damage is not remembered as whole";
  fs::remove(folder / "manifest.json");
  write_manifest(folder.string(), 2);
  settle();
  EXPECT_TRUE(reads_all(folder.string())) << "another manifest";
  EXPECT_FALSE(reads_all(folder.string()));

  // A cache that cannot be written, or none, is no error.
  ::setenv("SATURATE_CACHE", "/proc/nowhere", 1);
  EXPECT_TRUE(reads_all(folder.string()));
  EXPECT_TRUE(reads_all(folder.string()));
  ::unsetenv("SATURATE_CACHE");
}

TEST(CheckedFolders, ThatAreSmallLeaveNothingBehind) {
  const testing::TempFolder temp;
  const fs::path folder = fs::path(temp.path()) / "model";
  fs::create_directories(folder);
  const std::string cache = temp.path() + "/cache";
  std::ofstream(folder / "model.safetensors") << "few";
  write_manifest(folder.string(), 1);
  settle();
  ::setenv("SATURATE_CACHE", cache.c_str(), 1);
  check_model_files(folder.string());
  ::unsetenv("SATURATE_CACHE");
  EXPECT_FALSE(fs::exists(cache));
}

}  // namespace
}  // namespace saturate::model
