// SPDX-License-Identifier: Apache-2.0
#include "observe/top/screen.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "observe/top/json.h"
#include "observe/top/plot.h"

namespace saturate::observe {
namespace {

Snapshot machine(int gpus) {
  Snapshot s;
  s.driver = "580.1";
  s.cuda = 13000;
  s.cores = 8;
  for (int i = 0; i < gpus; ++i) {
    GpuView g;
    g.info.index = i;
    g.info.name = "Fake H";
    g.reading.utilisation = 83;
    g.reading.memory_used = 1 << 30;
    g.reading.memory_total = 4ll << 30;
    g.reading.activity.sm = 76.4;
    g.reading.clock_reasons = kReasonPowerCap;
    s.gpus.push_back(g);
  }
  ProcessView p;
  p.pid = 4711;
  p.seen = true;
  p.user = "ada";
  p.name = "python3";
  p.command = "/usr/bin/python3 train.py --lr 1";
  p.gpus.push_back({0, 512 << 20, 83});
  p.cpu = 0.97;
  p.verdict = {"launch-bound?", "GPU 83%"};
  p.workers = 1;
  s.processes.push_back(p);
  ProcessView w;
  w.pid = 4712;
  w.seen = w.worker = true;
  w.command = "loader";
  s.processes.push_back(w);
  return s;
}

// Without the escape sequences.
std::string plain(const std::string& line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
      continue;
    }
    out += line[i];
  }
  return out;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& l : lines) text += plain(l) + "\n";
  return text;
}

TEST(Screen, EverySizeIsKept) {
  std::vector<GpuHistory> history(8);
  for (GpuHistory& h : history) h.utilisation = {0.1, {}, 0.9};
  for (const int gpus : {0, 1, 3, 8}) {
    Snapshot s = machine(gpus);
    if (gpus == 0) s.no_gpu = "no driver; install one";
    for (const int width : {1, 2, 7, 20, 40, 79, 80, 120, 300}) {
      for (const int height : {1, 2, 3, 5, 10, 24, 60}) {
        for (const bool ascii : {false, true}) {
          View v;
          v.ascii = ascii;
          v.tree = true;
          for (const bool help : {false, true}) {
            v.help = help;
            const auto lines = draw_screen(s, history, v, width, height);
            ASSERT_EQ(lines.size(), static_cast<size_t>(height));
            for (const std::string& l : lines) {
              const std::string text = plain(l);
              ASSERT_LE(columns_of(text), width) << width << 'x' << height << ": " << text;
              if (!ascii) continue;
              for (const char c : text) ASSERT_TRUE(c >= 0x20 && c < 0x7F) << text;
            }
          }
        }
      }
    }
  }
}

TEST(Screen, ShowsWhatThereIs) {
  View v;
  const std::string text = joined(draw_screen(machine(1), {}, v, 130, 24));
  for (const char* part :
       {"83%", "Fake H", "1.0 GiB of 4.0 GiB", "power cap", "SM 76%", "tensor N/A", "4711", "ada",
        "512 MiB", "97", "launch-bound?", "python3 train.py", "[+1]", "CUDA 13.0"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_EQ(text.find("4712"), std::string::npos) << "workers only in the tree";
  EXPECT_EQ(text.find("/usr/bin"), std::string::npos);
  v.tree = true;
  v.selected = 4711;
  const std::string tree = joined(draw_screen(machine(1), {}, v, 130, 24));
  EXPECT_NE(tree.find("4712"), std::string::npos);
  EXPECT_NE(tree.find("launch-bound?: GPU 83%"), std::string::npos) << tree;
}

TEST(Screen, NoColourMeansNoEscapes) {
  View v;
  v.colour = false;
  for (const std::string& l : draw_screen(machine(2), {}, v, 100, 30))
    EXPECT_EQ(l.find('\x1b'), std::string::npos);
}

TEST(Screen, NamesCannotDriveTheTerminal) {
  Snapshot s = machine(1);
  s.processes[0].command =
      "evil\x1b]0;title\x07\xc2\x9b"
      "31m\xff\n";
  s.processes[0].user = "\x1b[2J";
  View v;
  v.colour = false;
  const std::string text = draw_once(s, v, 160);
  for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos);
  EXPECT_NE(parse_json(snapshot_json(s, false), "test").size(), 0u);
}

TEST(Screen, LostGpuSaysSo) {
  Snapshot s = machine(2);
  s.gpus[1].reading = {};
  s.gpus[1].reading.lost = "the GPU is lost";
  EXPECT_NE(joined(draw_screen(s, {}, {}, 120, 40)).find("the GPU is lost"), std::string::npos);
  EXPECT_NE(joined(draw_screen(s, {}, {}, 120, 9)).find("the GPU is lost"), std::string::npos);
}

TEST(Plot, History) {
  EXPECT_EQ(draw_history({0.0, 0.5, 1.0}, 4, 2, true), (std::vector<std::string>{"   :", "  ::"}));
  // Two values a column: 1.0 fills the left four dots, 0.25 the lowest right one.
  EXPECT_EQ(draw_history({1.0, 0.25}, 1, 1, false), std::vector<std::string>{"\u28c7"});
  EXPECT_EQ(draw_history({{}, 0.01}, 1, 1, false), std::vector<std::string>{"\u2880"})
      << "little is not nothing";
  EXPECT_EQ(draw_history({{}, 0.0}, 1, 1, false), std::vector<std::string>{" "});
  EXPECT_EQ(draw_bar(0.5, 4, true), "##  ");
  EXPECT_EQ(draw_bar(0.5, 3, false), "\u2588\u258c ");
  EXPECT_EQ(draw_bar({}, 3, false), "---");
  EXPECT_EQ(draw_bar(7.0, 2, true), "##");
}

TEST(Plot, Columns) {
  EXPECT_EQ(columns_of("a\u00e9\u4e2d"), 4);
  EXPECT_EQ(fit_columns("\u4e2d\u4e2d", 3, false), "\u4e2d ") << "half a wide letter does not fit";
  EXPECT_EQ(fit_columns("\u00e9x", 3, true), "?x ");
}

TEST(TopJson, UnknownIsNull) {
  Snapshot s = machine(1);
  const Json j = parse_json(snapshot_json(s, true), "test");
  EXPECT_EQ(j["schema"], kTopSchema);
  EXPECT_EQ(j["gpus"][0]["utilisation_percent"], 83);
  EXPECT_TRUE(j["gpus"][0]["power_w"].is_null());
  EXPECT_EQ(j["gpus"][0]["clock_reasons"], (Json::Array{"power cap"}));
  EXPECT_TRUE(j["processes"][0]["resident_bytes"].is_null());
  EXPECT_EQ(j["processes"][0]["verdict"], "launch-bound?");
  EXPECT_EQ(j["processes"][1]["worker"], true);
  s.processes[0].pid = -30;
  const Json hidden = parse_json(snapshot_json(s, false), "test");
  EXPECT_TRUE(hidden["processes"][0]["pid"].is_null());
  EXPECT_EQ(hidden["processes"][0]["driver_pid"], 30);
}

TEST(TopPrometheus, OneHelpAMetricAndNoLineForUnknown) {
  Snapshot s = machine(2);
  s.gpus[1].reading.utilisation = {};
  s.gpus[1].info.name = "quote\" back\\slash\n";
  const std::string text = snapshot_prometheus(s);
  EXPECT_NE(text.find("saturate_gpu_utilisation_ratio{gpu=\"0\",name=\"Fake H\",uuid=\"\"} 0.83\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("saturate_gpu_utilisation_ratio{gpu=\"1\""), std::string::npos);
  EXPECT_EQ(text.find("saturate_gpu_power_watts"), std::string::npos);
  EXPECT_NE(text.find("name=\"quote\\\" back\\\\slash?\""), std::string::npos);
  EXPECT_NE(text.find("saturate_process_verdict{pid=\"4711\",verdict=\"launch-bound?\"} 1"),
            std::string::npos);
  EXPECT_EQ(text.find("4712"), std::string::npos);
  size_t helps = 0, at = 0;
  while ((at = text.find("# HELP saturate_gpu_memory_used_bytes", at)) != std::string::npos) {
    ++helps;
    ++at;
  }
  EXPECT_EQ(helps, 1u);
}

}  // namespace
}  // namespace saturate::observe
