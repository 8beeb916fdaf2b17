// SPDX-License-Identifier: Apache-2.0
#include "observe/trace/curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace saturate::observe {
namespace {

Curve curve_of(int samples, int64_t period_ns, const std::function<double(int)>& value) {
  Curve c;
  for (int i = 0; i < samples; ++i) c.add(5'000 + i * period_ns, value(i));
  return c;
}

TEST(Curve, KeepsTheLargestOfEachStretchInConstantMemory) {
  const Curve c = curve_of(1'000'000, 70'000, [](int i) { return i == 777'777 ? 9.0 : i % 2; });
  const auto points = c.points();
  EXPECT_LE(points.size(), 512u);
  EXPECT_GT(points.size(), 256u);
  EXPECT_EQ(c.most(), 9);
  EXPECT_EQ(c.first(), 0);
  EXPECT_EQ(c.last(), 1);
  EXPECT_EQ(c.samples(), 1'000'000);
  int nines = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    nines += points[i].most == 9;
    if (points[i].most == 9) {
      EXPECT_NEAR(static_cast<double>(points[i].time_ns), 777'777 * 70e3, 70e9 / 256);
    }
    if (i > 0) {
      EXPECT_GT(points[i].time_ns, points[i - 1].time_ns);
    }
  }
  EXPECT_EQ(nines, 1);
}

TEST(Curve, TakesSamplesOutOfOrder) {
  Curve c;
  c.add(1'000'000'000, 1);
  c.add(0, 5);
  c.add(INT64_MAX / 2, 2);
  EXPECT_EQ(c.points().size(), 2u);
  EXPECT_EQ(c.points()[0].most, 5);
}

TEST(Curve, OnlyLastingGrowthIsGrowth) {
  const auto growth = [](const std::function<double(int)>& value) {
    return lasting_growth(curve_of(200, 1'000'000, value).points());
  };
  EXPECT_NEAR(growth([](int i) { return 100.0 + i; }), 274.5 / 124.5, 0.05);
  EXPECT_GT(growth([](int i) { return 100.0 + i + 30 * std::sin(i); }), 1.5) << "a noisy climb";
  EXPECT_EQ(growth([](int) { return 100.0; }), 1);
  EXPECT_EQ(growth([](int i) { return i < 100 ? 1.0 + i : 101.0; }), 1) << "a start, then flat";
  EXPECT_EQ(growth([](int i) { return 100.0 + i % 20; }), 1) << "a sawtooth";
  EXPECT_EQ(growth([](int i) { return 500.0 - i; }), 1) << "a fall";
  EXPECT_EQ(lasting_growth(curve_of(11, 1'000'000, [](int i) { return 1.0 + i; }).points()), 1)
      << "too little to decide";
}

}  // namespace
}  // namespace saturate::observe
