// SPDX-License-Identifier: Apache-2.0
#include "observe/report/perfetto.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

// A message taken apart: numbers and texts by field.
struct Fields {
  std::multimap<uint64_t, uint64_t> numbers;
  std::multimap<uint64_t, std::string> texts;

  explicit Fields(std::string_view in) {
    const auto varint = [&] {
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        if (in.empty()) throw std::runtime_error("cut varint");
        const auto byte = static_cast<unsigned char>(in.front());
        in.remove_prefix(1);
        value |= uint64_t{byte & 127u} << shift;
        if (byte < 128) return value;
      }
    };
    while (!in.empty()) {
      const uint64_t key = varint(), value = varint();
      if ((key & 7) == 0) {
        numbers.emplace(key >> 3, value);
      } else {
        texts.emplace(key >> 3, in.substr(0, value));
        in.remove_prefix(value);
      }
    }
  }
  uint64_t number(uint64_t field) const {
    const auto at = numbers.find(field);
    return at == numbers.end() ? 0 : at->second;
  }
};

TEST(Perfetto, SlicesNestAndLeavesTileTheTime) {
  testing::Simulator s;
  for (int i = 0; i < 10; ++i) {
    s.begin_step(i);
    s.host(30'000);
    s.kernel("gemm", 20'000);
    s.kernel("side", 50'000, 9);
    s.synchronize();
  }
  Trace t = s.take();
  // Two operations of one stream that overlap, as the nodes of a graph can.
  t.ops.push_back(t.ops.back());
  t.ops.back().start_ns -= 10'000;
  t.ops.back().end_ns -= 10'000;
  t.sort();
  std::map<uint64_t, std::string> tracks, names;
  std::map<uint64_t, std::vector<std::pair<uint64_t, std::string>>> open;
  std::map<std::string, uint64_t> leaf_ns;
  uint64_t begins = 0, leaf_end = 0;
  const Fields trace(render_perfetto(t));
  for (const auto& [field, bytes] : trace.texts) {
    ASSERT_EQ(field, 1u);
    const Fields packet(bytes);
    EXPECT_EQ(packet.number(10), 1u);
    if (const auto d = packet.texts.find(60); d != packet.texts.end()) {
      const Fields descriptor(d->second);
      tracks[descriptor.number(1)] = descriptor.texts.find(2)->second;
      continue;
    }
    if (const auto i = packet.texts.find(12); i != packet.texts.end()) {
      const Fields name(Fields(i->second).texts.find(2)->second);
      names[name.number(1)] = name.texts.find(2)->second;
    }
    const Fields event(packet.texts.find(11)->second);
    const uint64_t track = event.number(11), time = packet.number(8);
    ASSERT_TRUE(tracks.contains(track));
    if (event.number(9) == 1) {
      ++begins;
      ASSERT_TRUE(names.contains(event.number(10)));
      open[track].emplace_back(time, names[event.number(10)]);
      if (tracks[track] == "where the time went" && leaf_end != 0) {
        EXPECT_EQ(time, leaf_end);
      }
    } else {
      ASSERT_EQ(event.number(9), 2u);
      ASSERT_FALSE(open[track].empty());
      ASSERT_LE(open[track].back().first, time);
      if (tracks[track] == "where the time went") {
        leaf_ns[open[track].back().second] += time - open[track].back().first;
        leaf_end = time;
      }
      open[track].pop_back();
    }
  }
  for (const auto& [track, slices] : open) EXPECT_TRUE(slices.empty()) << tracks[track];
  EXPECT_GE(begins, t.records());
  int64_t end = 0;
  for (const DeviceOp& op : t.ops) end = std::max(end, op.end_ns);
  uint64_t sum = 0;
  for (const auto& [name, ns] : leaf_ns) sum += ns;
  EXPECT_EQ(sum, static_cast<uint64_t>(end - t.ops.front().start_ns));
  EXPECT_GT(leaf_ns["idle: host code after a synchronisation"], 0u);
}

}  // namespace
}  // namespace saturate::observe
