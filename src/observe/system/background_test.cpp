// SPDX-License-Identifier: Apache-2.0
#include "observe/system/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <semaphore>

namespace saturate::observe {
namespace {

using namespace std::chrono_literals;

std::atomic<int> g_reads = 0;
std::binary_semaphore g_driver{0};

// Hangs in its third read until g_driver is released.
class Hanging final : public GpuMonitor {
 public:
  explicit Hanging(bool hang) : info_(1), hang_(hang) {}
  std::string driver_version() const override { return "1"; }
  std::optional<int> cuda_version() const override { return {}; }
  const std::vector<GpuInfo>& gpus() const override { return info_; }
  GpuReading read(int, bool) override {
    if (++g_reads == 3 && hang_) g_driver.acquire();
    return {};
  }
  std::optional<double> energy_j(int) override { return {}; }
  std::vector<GpuProcess> processes(int) override { return {}; }

 private:
  std::vector<GpuInfo> info_;
  bool hang_;
};

BackgroundSampler start(bool hang) {
  g_reads = 0;
  return BackgroundSampler(
      Sampler(std::make_unique<Hanging>(hang), "", ProcessReader("/nowhere"), {}), 0.02);
}

bool reaches(int reads) {
  for (int i = 0; i < 500 && g_reads < reads; ++i) std::this_thread::sleep_for(10ms);
  return g_reads >= reads;
}

TEST(BackgroundSampler, SamplesUntilStopped) {
  BackgroundSampler sampler = start(false);
  ASSERT_TRUE(reaches(4));
  EXPECT_TRUE(sampler.newest());
  EXPECT_TRUE(sampler.stop(5));
  const int reads = g_reads;
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(g_reads, reads);
}

TEST(BackgroundSampler, PauseAndInterval) {
  BackgroundSampler sampler = start(false);
  ASSERT_TRUE(reaches(2));
  sampler.set(0.02, true);
  std::this_thread::sleep_for(100ms);
  const int reads = g_reads;
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(g_reads, reads);
  sampler.set(3600, false);
  EXPECT_TRUE(reaches(reads + 1));
  EXPECT_TRUE(sampler.stop(5)) << "an hour's wait is cut short";
}

TEST(BackgroundSampler, DriverThatHangsDoesNotHoldTheProgram) {
  BackgroundSampler sampler = start(true);
  ASSERT_TRUE(reaches(3));
  EXPECT_TRUE(sampler.newest()) << "what was before the hang is still there";
  EXPECT_FALSE(sampler.stop(0.1));
  g_driver.release();
}

}  // namespace
}  // namespace saturate::observe
