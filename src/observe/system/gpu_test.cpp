// SPDX-License-Identifier: Apache-2.0
#include "observe/system/gpu.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "observe/testing/fake_gpu.h"

namespace saturate::observe {
namespace {

using testing::open_fake_gpu;

constexpr const char* kHopper = R"({"driver": "580.1", "cuda": 13000, "gpus": [{
  "name": "Fake H", "utilization": 83, "memory": 1073741824, "power": 250500, "power_limit": 700000,
  "energy": 12345, "sm_clock": 1980, "max_clock": 1980, "temperature": 44, "reasons": 4, "mig": 0,
  "gpm": {"2": 76.5, "3": 30, "5": 61, "10": 25, "20": 2, "21": 3},
  "processes": [{"pid": 7, "memory": 4096}, {"pid": 8}],
  "process_utilization": [{"pid": 7, "sm": 60}, {"pid": 7, "sm": 71}, {"pid": 8, "sm": 101}]}]})";

TEST(Gpu, ReadsWhatTheDriverTells) {
  std::string why;
  auto monitor = open_fake_gpu(kHopper, why);
  ASSERT_TRUE(monitor) << why;
  EXPECT_EQ(monitor->driver_version(), "580.1");
  EXPECT_EQ(monitor->cuda_version(), 13000);
  ASSERT_EQ(monitor->gpus().size(), 1u);
  EXPECT_EQ(monitor->gpus()[0].name, "Fake H");
  EXPECT_EQ(monitor->gpus()[0].mig, false);
  EXPECT_TRUE(monitor->gpus()[0].gpm);
  const auto start = std::chrono::steady_clock::now();
  GpuReading r = monitor->read(0, true);
  EXPECT_EQ(r.utilisation, 83);
  EXPECT_EQ(r.memory_used, 1 << 30);
  EXPECT_EQ(r.memory_total, 80ll << 30);
  EXPECT_DOUBLE_EQ(r.power_w.value(), 250.5);
  EXPECT_DOUBLE_EQ(r.energy_j.value(), 12.345);
  EXPECT_EQ(monitor->energy_j(0), r.energy_j);
  EXPECT_EQ(r.sm_mhz, 1980);
  EXPECT_EQ(r.clock_reasons, kReasonPowerCap);
  EXPECT_FALSE(r.fan_percent || r.slowdown_c || r.memory_mhz);  // not in the script
  EXPECT_FALSE(r.activity.sm) << "one sample cannot give a rate";
  const GpuReading soon = monitor->read(0, true);
  if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(100)) {
    EXPECT_FALSE(soon.activity.sm) << "too soon after the first";
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  r = monitor->read(0, true);
  EXPECT_EQ(r.activity.sm, 76.5);
  EXPECT_EQ(r.activity.tensor, 61);
  EXPECT_FALSE(r.activity.nvlink_sent) << "this chip has no links";
  EXPECT_EQ(r.pcie_received, 3.0 * 1024 * 1024);

  const auto processes = monitor->processes(0);
  ASSERT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes[0].memory, 4096);
  EXPECT_EQ(processes[0].utilisation, 66);
  EXPECT_FALSE(processes[1].memory) << "the driver gave all ones";
  EXPECT_FALSE(processes[1].utilisation) << "101% is no measurement";
}

TEST(Gpu, OldDriverGivesLess) {
  std::string why;
  auto monitor = open_fake_gpu(kHopper, why, "fake_nvml_old");
  ASSERT_TRUE(monitor) << why;
  EXPECT_FALSE(monitor->gpus()[0].gpm);
  EXPECT_FALSE(monitor->gpus()[0].mig);
  const GpuReading r = monitor->read(0, true);
  EXPECT_EQ(r.utilisation, 83);
  EXPECT_EQ(r.memory_used, 1 << 30) << "by the first version of the call";
  EXPECT_EQ(r.clock_reasons, kReasonPowerCap) << "by its old name";
  EXPECT_EQ(monitor->processes(0).size(), 2u);
}

TEST(Gpu, PcieOnlyWhenAskedFor) {
  std::string why;
  auto monitor =
      open_fake_gpu(R"({"gpus": [{"pcie_sent": 2, "pcie_received": 5}]})", why, "fake_nvml_old");
  ASSERT_TRUE(monitor) << why;
  EXPECT_EQ(monitor->read(0, true).pcie_received, 5.0 * 1024);
  EXPECT_FALSE(monitor->read(0, false).pcie_received);
}

TEST(Gpu, FailuresAreEmpty) {
  std::string why;
  auto monitor = open_fake_gpu(
      R"({"gpus": [{"utilization": {"error": 3}, "power": {"error": 999}, "reasons": {"error": 4},
          "processes": {"error": 4}, "gpm": {}, "gpm_error": 3, "temperature": 40}]})",
      why);
  ASSERT_TRUE(monitor) << why;
  for (int i = 0; i < 2; ++i) {
    const GpuReading r = monitor->read(0, true);
    EXPECT_FALSE(r.utilisation || r.power_w || r.clock_reasons || r.memory_used || r.activity.sm);
    EXPECT_EQ(r.temperature_c, 40);
    EXPECT_EQ(r.lost, "");
    EXPECT_TRUE(monitor->processes(0).empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
  }
}

TEST(Gpu, LostGpuSaysSoAndTheOtherGoesOn) {
  std::string why;
  auto monitor = open_fake_gpu(
      R"({"gpus": [{"utilization": {"calls": [50, {"error": 15}]}, "temperature": 40},
                   {"utilization": 20}, {"handle_error": 15}]})",
      why);
  ASSERT_TRUE(monitor) << why;
  EXPECT_EQ(monitor->read(0, true).utilisation, 50);
  const GpuReading r = monitor->read(0, true);
  EXPECT_NE(r.lost.find("lost"), std::string::npos) << r.lost;
  EXPECT_FALSE(r.temperature_c) << "nothing of a lost GPU is worth showing";
  EXPECT_EQ(monitor->read(1, true).utilisation, 20);
  EXPECT_NE(monitor->read(2, true).lost, "");
  EXPECT_TRUE(monitor->processes(2).empty());
}

TEST(Gpu, NoDriverSaysWhyAndWhatToDo) {
  std::string why;
  EXPECT_FALSE(open_fake_gpu("{}", why, "not_there"));
  EXPECT_NE(why.find("no NVIDIA driver"), std::string::npos) << why;
  EXPECT_FALSE(open_fake_gpu(R"({"init": 9})", why));
  EXPECT_NE(why.find("modprobe"), std::string::npos) << why;
  EXPECT_FALSE(open_fake_gpu(R"({"init": 18})", why));
  EXPECT_NE(why.find("restart the machine"), std::string::npos) << why;
}

TEST(Gpu, NamesOfReasons) {
  EXPECT_EQ(clock_reason_names(0), "none");
  EXPECT_EQ(clock_reason_names(kReasonIdle), "idle");
  EXPECT_EQ(clock_reason_names(kReasonPowerCap | kReasonThermal), "power cap, thermal");
}

}  // namespace
}  // namespace saturate::observe
