// SPDX-License-Identifier: Apache-2.0
#include "observe/report/rooflines.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/text.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

// Products of 4,096 cubed in bf16 in 250 us, and additions of 64 MiB in 50 us.
Trace trace(bool shapes, const char* device) {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.copy_in(64 << 20, 1'200'000, false, 9);
    for (int k = 0; k < 4; ++k) {
      s.kernel("sm90_gemm_bf16bf16", 250'000);
      s.kernel("vectorized_elementwise_kernel", 50'000);
    }
  }
  Trace t = s.take();
  t.source = kKinetoSource;
  t.framework = "PyTorch";
  t.devices[0].name = device;
  if (!shapes) return t;
  t.shapes = true;
  int64_t id = 0;
  for (DeviceOp& op : t.ops) {
    op.operation = ++id;
    const double n = 4096;
    if (t.names[op.name] == "sm90_gemm_bf16bf16")
      t.work.push_back({id, 2 * n * n * n, 6 * n * n, Precision::f16});
    else if (op.kind == OpKind::kernel)
      t.work.push_back({id, 1 << 24, 3.0 * (1 << 26), Precision::unknown});
  }
  return t;
}

Diagnosis diagnosed(bool shapes, const char* device) {
  return diagnose(*make_capture(trace(shapes, device)), "t.json");
}

TEST(Rooflines, EachKernelGetsItsRateAndShare) {
  const Diagnosis g = diagnosed(true, "NVIDIA H200");
  const Json json = parse_json(render_json(g), "test");
  for (const Json& k : *json["devices"][0]["kernels"].if_array()) {
    if (k["name"] == "sm90_gemm_bf16bf16") {
      const double tflops = 2.0 * 4096 * 4096 * 4096 / 250e-6 * 1e-12;
      EXPECT_NEAR(k["tflops"].number().value(), tflops, 1e-6);
      EXPECT_NEAR(k["roofline_share"].number().value(), tflops / 989, 1e-6);
      EXPECT_EQ(k["bound"], "arithmetic");
    } else {
      EXPECT_NEAR(k["gb_per_s"].number().value(), 3.0 * (1 << 26) / 50e3, 1e-6);
      EXPECT_EQ(k["bound"], "memory");
    }
  }
  const auto& copy = json["devices"][0]["copies"][0];
  EXPECT_EQ(copy["link_gb_per_s"], 63.0);
  const std::string text = render_text(g), html = render_html(g);
  EXPECT_NE(text.find("550 TFLOP/s, 56% of its roof"), std::string::npos) << text;
  EXPECT_NE(text.find("4027 GB/s, 84% of its roof"), std::string::npos) << text;
  EXPECT_NE(html.find("aria-label=\"roofline\""), std::string::npos);
  EXPECT_NE(html.find("16-bit tensor cores: 989 TFLOP/s"), std::string::npos);
  EXPECT_NE(html.find("<td>89%</td>"), std::string::npos) << "56 of 63 GB/s";
}

TEST(Rooflines, MissingShapesAndUnknownDevicesSaySo) {
  const Diagnosis none = diagnosed(false, "NVIDIA H200");
  EXPECT_NE(render_text(none).find("record_shapes=True"), std::string::npos);
  EXPECT_EQ(render_html(none).find("aria-label=\"roofline\""), std::string::npos);
  const Json json = parse_json(render_json(none), "test");
  EXPECT_TRUE(json["devices"][0]["kernels"][0]["tflops"].is_null());
  const Diagnosis strange = diagnosed(true, "Somebody's GPU");
  EXPECT_NE(render_text(strange).find("the peaks of this device are not known"), std::string::npos);
  EXPECT_NE(render_text(strange).find("550 TFLOP/s "), std::string::npos);
  EXPECT_EQ(render_html(strange).find("aria-label=\"roofline\""), std::string::npos);
  EXPECT_TRUE(parse_json(render_json(strange), "test")["devices"][0]["peaks"].is_null());
}

}  // namespace
}  // namespace saturate::observe
