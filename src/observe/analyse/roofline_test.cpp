// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/roofline.h"

#include <gtest/gtest.h>

#include "observe/analyse/analyser.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

TEST(DevicePeaks, AreThoseOfTheWholeName) {
  const struct {
    const char* device;
    double tensor16, memory;
  } cases[] = {
      {"NVIDIA H200", 989, 4800},
      {"NVIDIA H200 NVL", 835, 4800},
      {"NVIDIA H100 80GB HBM3", 989, 3350},
      {"NVIDIA H100 PCIe", 756, 2000},
      {"NVIDIA A100-SXM4-40GB", 312, 1555},
      {"NVIDIA A100-SXM4-80GB", 312, 2039},
      {"NVIDIA A100 80GB PCIe", 312, 1935},
      {"NVIDIA A10", 125, 600},
      {"Tesla V100-PCIE-16GB", 112, 900},
      {"Tesla V100-SXM2-32GB", 125, 900},
      {"Tesla T4", 65, 320},
      {"NVIDIA L4", 121, 300},
      {"NVIDIA L40S", 362, 864},
      {"NVIDIA GeForce RTX 4090", 165.2, 1008},
  };
  for (const auto& c : cases) {
    const DevicePeaks* peaks = device_peaks(c.device);
    ASSERT_NE(peaks, nullptr) << c.device;
    EXPECT_EQ(peaks->tensor16, c.tensor16) << c.device;
    EXPECT_EQ(peaks->memory, c.memory) << c.device;
  }
  for (const char* device :
       {"", "NVIDIA A10G", "NVIDIA A1000", "NVIDIA GeForce RTX 4090 Laptop GPU", "simulated",
        "AMD Instinct MI300X"})
    EXPECT_EQ(device_peaks(device), nullptr) << device;
}

KernelStat kernel(double flops, double bytes, int64_t ns, Precision precision, const char* name) {
  KernelStat k;
  k.name = name;
  k.flops = flops, k.bytes = bytes, k.work_ns = ns, k.precision = precision;
  return k;
}

TEST(Roofline, TheLowerRoofBinds) {
  const DevicePeaks& h200 = *device_peaks("NVIDIA H200");
  // 8192^3 in bf16 at 600 TFLOP/s.
  const double n = 8192, flops = 2 * n * n * n;
  const Roofline big = roofline(
      kernel(flops, 6 * n * n, static_cast<int64_t>(flops / 600e3), Precision::f16, "nvjet"),
      &h200);
  EXPECT_NEAR(big.tflops, 600, 0.01);
  EXPECT_NEAR(big.share, 600 / 989.0, 1e-4);
  EXPECT_TRUE(big.compute_bound);
  const Roofline add =
      roofline(kernel(1e9, 12e9, 3'000'000, Precision::unknown, "vectorized_elementwise"), &h200);
  EXPECT_NEAR(add.gb_per_s, 4000, 1e-6);
  EXPECT_NEAR(add.share, 4000 / 4800.0, 1e-6);
  EXPECT_FALSE(add.compute_bound);
  // fp32 inputs: TF32 by tensor cores, else the other units.
  EXPECT_NEAR(
      roofline(kernel(1e12, 1, 10'000'000, Precision::f32, "sm80_s1688gemm_tf32"), &h200).share,
      100 / 494.7, 1e-6);
  EXPECT_NEAR(roofline(kernel(1e11, 1, 10'000'000, Precision::f32, "sgemm_128x64"), &h200).share,
              10 / 66.9, 1e-6);
}

TEST(Roofline, WhatIsNotKnownIsZero) {
  const KernelStat k = kernel(1e12, 1e9, 10'000'000, Precision::f16, "nvjet");
  EXPECT_EQ(roofline(k, nullptr).share, 0);
  EXPECT_NEAR(roofline(k, nullptr).tflops, 100, 1e-9);
  EXPECT_EQ(roofline(KernelStat{}, device_peaks("NVIDIA H200")).tflops, 0);
  EXPECT_EQ(
      roofline(kernel(1e12, 1, 1000, Precision::f64, "dgemm"), device_peaks("Tesla T4")).share, 0);
}

// An operator's work goes to its matrix kernels by time, and a copy's to all.
TEST(KernelWork, IsSharedAmongTheKernelsOfAnOperator) {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.kernel("sm90_gemm_bf16bf16", 30'000);
    s.kernel("other_bf16bf16_gemm", 10'000);
    s.kernel("splitKreduce_kernel", 10'000);
    s.kernel("elementwise_kernel", 20'000);
  }
  Trace t = s.take();
  t.devices[0].name = "NVIDIA H200";
  for (size_t i = 0; i < t.ops.size(); ++i) {
    const int64_t step = static_cast<int64_t>(i) / 4;
    t.ops[i].operation = i % 4 < 3 ? 2 * step : 2 * step + 1;
  }
  for (int64_t step = 0; step < 30; ++step) {
    t.work.push_back({2 * step, 4e9, 2e6, Precision::f16});
    t.work.push_back({2 * step + 1, 0, 5e6, Precision::unknown});
  }
  t.sort();
  const Analysis a = analyse(t);
  double flops = 0, bytes = 0;
  int64_t launches = 0;
  for (const KernelStat& k : a.devices[0].kernels) {
    flops += k.flops;
    bytes += k.bytes;
    if (k.name == "sm90_gemm_bf16bf16") {
      launches = k.count;
      EXPECT_NEAR(k.flops / static_cast<double>(k.count), 3e9, 1);
      EXPECT_NEAR(roofline(k, device_peaks(a.devices[0].info.name)).tflops, 100, 1e-6);
    }
    if (k.name == "splitKreduce_kernel") {
      EXPECT_EQ(k.work_ns, 0);
    }
  }
  EXPECT_NEAR(flops, 4e9 * static_cast<double>(launches), 1e3) << "nothing is counted twice";
  EXPECT_NEAR(bytes, 7e6 * static_cast<double>(launches), 5e6);
}

}  // namespace
}  // namespace saturate::observe
