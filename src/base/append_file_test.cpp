// SPDX-License-Identifier: Apache-2.0
#include "base/append_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate {
namespace {

using testing::read_file;
using testing::TempFolder;
using testing::write_file;

TEST(AppendFile, KeepsWhatIsThere) {
  const TempFolder folder;
  write_file(folder / "log", "one\n");
  AppendFile(folder / "log").append("two\n");
  AppendFile(folder / "new").append("first\n");
  EXPECT_EQ(read_file(folder / "log"), "one\ntwo\n");
  EXPECT_EQ(read_file(folder / "new"), "first\n");
  AppendFile(folder / "log", AppendFile::Content::emptied).append("only\n");
  EXPECT_EQ(read_file(folder / "log"), "only\n");
  EXPECT_THROW(AppendFile("/nonexistent/folder/log"), Error);
}

TEST(AppendFile, ARecordThatDoesNotFitLeavesNothing) {
  const TempFolder folder;
  AppendFile log(folder / "log");
  log.append("one\n");
  // A file may not grow beyond the limit: the first bytes of the record fit, the others do not.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit few{6, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  std::string what;
  try {
    log.append("two, too long\n");
  } catch (const Error& e) {
    what = e.what();
    EXPECT_EQ(e.code(), Errc::io);
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(what.find("log: File too large; raise the limit of a file's size"), std::string::npos) << what;
  EXPECT_EQ(read_file(folder / "log"), "one\n");
  log.append("three\n");
  EXPECT_EQ(read_file(folder / "log"), "one\nthree\n");
}

}  // namespace
}  // namespace saturate
