// SPDX-License-Identifier: Apache-2.0
// Files, peers and locks from the spans and sums of a capture to the words of the report.
#include "observe/report/host_uses.h"

#include <gtest/gtest.h>

#include "base/testing/temp_folder.h"
#include "observe/analyse/waits_beside.h"
#include "observe/read/sat_reader.h"
#include "observe/read/sat_writer.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/text.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

constexpr int64_t kMs = 1'000'000, kSecond = 1'000'000'000;

HostUse checkpoint() {
  HostUse u;
  u.kind = SpanKind::file_write;
  u.name = "/ckpt/step-#.pt";
  u.example = "/ckpt/step-100.pt";
  u.storage = "nfs4 on server:/export";
  u.over_network = true;
  u.thread = "python (100)";
  u.files = 7;
  u.bytes = 7 * (int64_t{1200} << 20);
  u.waited_ns = 7 * 1'900 * kMs;
  u.threads = 1;
  u.episodes = 7;
  u.first_ns = 10 * kSecond;
  u.last_start_ns = u.first_ns + 6 * 8 * kSecond;
  u.last_ns = u.last_start_ns + 1'900 * kMs;
  return u;
}

HostUse dataset() {
  HostUse u;
  u.name = "/data/train.bin";
  u.storage = "ext4 on /dev/nvme0n1";
  u.thread = "pt_data_worker (200)";
  u.bytes = 1'800 << 20;
  u.storage_bytes = 1'656 << 20;
  u.threads = 4;
  u.episodes = 1;
  u.waited_ns = 9 * kSecond;
  u.last_ns = 10 * kSecond;
  return u;
}

Diagnosis writes_checkpoints() {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.kernel("sm90_gemm_bf16bf16", 1 * kMs);
    s.synchronize();
    s.wait(SpanKind::file_write, i == 0 ? "/ckpt/step-100.pt" : "/ckpt/step-#.pt", 3 * kMs);
  }
  Trace t = s.take();
  t.host_uses = {checkpoint(), dataset()};
  return diagnose(*make_capture(std::move(t)), "run");
}

TEST(HostUses, ACheckpointOnTheLaunchingThread) {
  const Diagnosis g = writes_checkpoints();
  EXPECT_EQ(g.verdict.id, "host_bound");
  EXPECT_NE(g.verdict.why.find("/ckpt/step-#.pt (7 files"), std::string::npos) << g.verdict.why;
  const std::string text = render_text(g);
  EXPECT_NE(text.find("written: 7 times, every 8 s, 1.2 GiB and 1.9 s each by thread python (100)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("[nfs4 on server:/export, over the network]; the device waits for this 7"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("writing a file"), std::string::npos);
  EXPECT_NE(render_html(g).find("/ckpt/step-#.pt"), std::string::npos);
  const Json j = host_uses_json(g);
  ASSERT_GE(j.size(), 1u);
  EXPECT_NEAR(*j[0]["idle_share"].number(), 0.74, 0.02);
}

// Two workers read while the launching thread waits for data; a third thread waits for its peer all
// the time, which is not what the launching thread waits for.
TEST(HostUses, InputThatWaitsForADisk) {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.wait(SpanKind::loader, "a pipe", 4 * kMs);
    s.copy_in(1 << 20, 50'000, false);
    s.kernel("sm90_gemm_bf16bf16", 1 * kMs);
    s.synchronize();
  }
  Trace t = s.take();
  t.host_uses = {dataset()};
  const uint32_t file = t.names.add("/data/train.bin"), peer = t.names.add("10.0.0.9:80");
  const uint32_t worker = t.threads.add({1, 200}), other = t.threads.add({1, 201}),
                 service = t.threads.add({0, 300});
  for (const HostSpan& span : std::vector<HostSpan>(t.spans)) {
    if (span.kind != SpanKind::loader) continue;
    const int64_t middle = (span.start_ns + span.end_ns) / 2;
    t.spans.push_back({span.start_ns, middle + kMs, file, worker, SpanKind::file_read});
    t.spans.push_back({middle - kMs, span.end_ns - 200'000, file, other, SpanKind::file_read});
  }
  t.spans.push_back({0, 10 * kSecond, peer, service, SpanKind::network});
  const Diagnosis g = diagnose(*make_capture(std::move(t)), "run");
  EXPECT_EQ(g.verdict.id, "input_bound");
  const DeviceAnalysis& d = g.device();
  ASSERT_EQ(d.beside.size(), 1u);
  EXPECT_NEAR(static_cast<double>(d.beside.begin()->second) / static_cast<double>(d.waited_ns),
              0.95, 0.01);
  const std::string text = render_text(g);
  EXPECT_NE(text.find("/data/train.bin read: 1.8 GiB at 180 MiB/s by 4 threads, most by "
                      "pt_data_worker (200), 92% of it not in the page cache"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("input waits for it"), std::string::npos) << text;
  EXPECT_NE(g.verdict.why.find("/data/train.bin"), std::string::npos) << g.verdict.why;
}

TEST(HostUses, NothingWithoutSamples) {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.kernel("sm90_gemm_bf16bf16", 1 * kMs);
  }
  const Diagnosis g = diagnose(*make_capture(s.take()), "run");
  EXPECT_EQ(host_uses_text(g), "");
  EXPECT_EQ(host_uses_html(g), "");
  EXPECT_EQ(host_uses_json(g).size(), 0u);
}

TEST(HostUses, ComeBackFromACapture) {
  const saturate::testing::TempFolder folder;
  Trace t;
  t.host_uses = {checkpoint(), dataset()};
  SatWriter writer(folder / "host.sat");
  writer.write(t, 0);
  writer.close(t);
  for (const SatPauses pauses : {SatPauses::cut, SatPauses::kept}) {
    const auto capture = read_sat(open_input(folder / "host.sat"), kSatWindowRecords, pauses);
    while (capture->read_window()) {
    }
    t.sort();
    EXPECT_EQ(capture->trace().host_uses, t.host_uses);
  }
}

TEST(WaitsBeside, WhatGoesOnForLongerIsNoCause) {
  Trace t;
  const uint32_t name = t.names.add("/x"), thread = t.threads.add({1, 1});
  t.spans.push_back({0, 100 * kMs, name, thread, SpanKind::file_read});
  t.spans.push_back({120 * kMs, 190 * kMs, name, thread, SpanKind::file_read});
  t.spans.push_back({200 * kMs, 900 * kMs, name, thread, SpanKind::file_read});
  WaitsBeside::Sums sums;
  WaitsBeside(t).add(50 * kMs, 250 * kMs, sums);
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums.begin()->second, (50 + 70) * kMs);
}

}  // namespace
}  // namespace saturate::observe
