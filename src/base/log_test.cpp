// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace saturate {
namespace {

class Log : public ::testing::Test {
 protected:
  ~Log() override { set_log_level(LogLevel::info); }
};

TEST_F(Log, DropsWhatIsAboveTheLevel) {
  ::testing::internal::CaptureStderr();
  set_log_level(LogLevel::warning);
  log_info("info");
  log_warning("careful");
  log_error("failed");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "saturate: warning: careful\nsaturate: failed\n");
}

TEST_F(Log, ControlCharactersNeverReachTheOutput) {
  ::testing::internal::CaptureStderr();
  log_info("a\x1b[31mred\rb\tc");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "a?[31mred?b\tc\n");
}

TEST_F(Log, LinesOfThreadsStayWhole) {
  ::testing::internal::CaptureStderr();
  constexpr int kThreads = 4, kLines = 100;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) log_info(std::string(50, static_cast<char>('a' + t)));
    });
  }
  for (std::thread& t : threads) t.join();
  const std::string text = ::testing::internal::GetCapturedStderr();
  ASSERT_EQ(text.size(), size_t{kThreads * kLines * 51});
  for (size_t i = 0; i < text.size(); i += 51) {
    const std::string line = text.substr(i, 51);
    EXPECT_EQ(line, std::string(50, line[0]) + "\n");
  }
}

}  // namespace
}  // namespace saturate
