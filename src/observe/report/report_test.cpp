// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "observe/report/compare.h"
#include "observe/report/diagnosis.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/text.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

using testing::Simulator;

Diagnosis diagnosis_of(const std::function<void(Simulator&)>& step, int steps = 30,
                       bool marked = true) {
  Simulator s;
  for (int i = 0; i < steps; ++i) {
    if (marked) s.begin_step(i);
    step(s);
  }
  Trace t = s.take();
  t.framework = "PyTorch";
  return diagnose(*make_capture(std::move(t)), "test.json");
}

void layers(Simulator& s, int n, int64_t kernel_ns, int64_t host_ns) {
  for (int i = 0; i < n; ++i) {
    s.host(host_ns);
    s.kernel(i == 0 ? "first_bf16bf16_gemm" : "sm90_gemm_bf16bf16", kernel_ns);
  }
}

TEST(Verdict, NamesThePlantedCause) {
  const struct {
    const char* id;
    std::function<void(Simulator&)> step;
  } cases[] = {
      {"launch_bound", [](Simulator& s) { layers(s, 200, 3'000, 5'000); }},
      {"host_bound",
       [](Simulator& s) {
         s.host(4'000'000);
         layers(s, 20, 100'000, 5'000);
       }},
      {"sync_bound",
       [](Simulator& s) {
         for (int i = 0; i < 5; ++i) {
           layers(s, 4, 30'000, 20'000);
           s.synchronize();
         }
       }},
      {"input_bound",
       [](Simulator& s) {
         s.wait(SpanKind::loader, "enumerate(DataLoader)", 5'000'000);
         s.copy_in(1 << 20, 50'000, true);
         layers(s, 20, 100'000, 5'000);
       }},
      {"copy_bound",
       [](Simulator& s) {
         s.copy_in(64 << 20, 4'000'000, true);
         layers(s, 20, 100'000, 5'000);
       }},
      {"allocation_bound",
       [](Simulator& s) {
         s.call("cudaMalloc", 3'000'000);
         layers(s, 20, 100'000, 5'000);
         s.call("cudaFree", 500'000);
       }},
      {"communication_bound",
       [](Simulator& s) {
         layers(s, 20, 100'000, 5'000);
         s.kernel("ncclDevKernel_AllReduce", 2'000'000);
       }},
      {"gpu_bound", [](Simulator& s) { layers(s, 20, 300'000, 5'000); }},
      {"under_filled",
       [](Simulator& s) {
         for (int i = 0; i < 30; ++i) s.kernel("sm90_gemm_bf16bf16", 60'000, 7, 40);
       }},
  };
  for (const auto& c : cases) {
    const Diagnosis g = diagnosis_of(c.step);
    EXPECT_EQ(g.verdict.id, c.id) << render_text(g);
    EXPECT_EQ(g.verdict.confidence, "high") << c.id;
  }
}

// One wait a step beside a device that works nine tenths of the time: a remedy, and no cause.
TEST(Verdict, WhatBringsLittleBesideABusyDeviceIsNoCause) {
  const Diagnosis g = diagnosis_of([](Simulator& s) {
    layers(s, 20, 30'000, 20'000);
    s.synchronize();
  });
  EXPECT_EQ(g.verdict.id, "gpu_bound") << g.verdict.why;
  EXPECT_NE(g.verdict.why.find("no waiting for the device"), std::string::npos) << g.verdict.why;
  ASSERT_FALSE(g.fixes.worth.empty());
  EXPECT_EQ(g.fixes.worth[0].kind, FixKind::syncs);
}

TEST(Verdict, FewStepsLowerTheConfidence) {
  EXPECT_EQ(diagnosis_of([](Simulator& s) { layers(s, 20, 3'000, 5'000); }, 4).verdict.confidence,
            "low");
  EXPECT_EQ(diagnosis_of([](Simulator& s) { layers(s, 20, 3'000, 5'000); }, 10).verdict.confidence,
            "medium");
}

// The shares that the text shows, rounded to a tenth of a percent, add up.
TEST(TextReport, BudgetSums) {
  const Diagnosis g = diagnosis_of([](Simulator& s) {
    s.wait(SpanKind::loader, "enumerate(DataLoader)", 400'000);
    s.copy_in(1 << 20, 50'000, true);
    layers(s, 20, 20'000, 25'000);
    s.synchronize();
  });
  std::istringstream lines(render_text(g));
  std::string line;
  double sum = 0;
  bool in_budget = false;
  while (std::getline(lines, line)) {
    if (line.starts_with("Where the time"))
      in_budget = true;
    else if (line.starts_with("100.0%"))
      break;
    else if (in_budget)
      sum += std::stod(line);
  }
  EXPECT_NEAR(sum, 100, 1);
}

TEST(TextReport, NamesFromAFileCannotDriveTheTerminal) {
  EXPECT_EQ(printable("a\x1b[31mb\n\x7f\xC2\x9B"), "a?[31mb???");
  EXPECT_EQ(printable("Gr\xC3\xB6\xC3\x9F"
                      "e \xF0\x9F\x98\x80"),
            "Gr\xC3\xB6\xC3\x9F"
            "e \xF0\x9F\x98\x80");
  EXPECT_EQ(printable("\xFF\xC3"), "??");
  Simulator s;
  for (int i = 0; i < 30; ++i) s.kernel("evil\x1b]0;title\x07", 20'000);
  const Diagnosis g = diagnose(*make_capture(s.take()), "x\x1b.json");
  EXPECT_EQ(render_text(g).find('\x1b'), std::string::npos);
  EXPECT_EQ(render_json(g).find('\x1b'), std::string::npos);
}

TEST(HtmlReport, IsWholeAndEscapesWhatTheFileSays) {
  Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.host(50'000);
    s.kernel("<script>alert('x')</script>&\x1b", 20'000);
    s.copy_in(1 << 20, 30'000, true);
  }
  const Diagnosis g = diagnose(*make_capture(s.take()), "<b>.json");
  const std::string html = render_html(g);
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(html.ends_with("</html>\n"));
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;\uFFFD"),
            std::string::npos);
  EXPECT_NE(html.find("&lt;b&gt;.json"), std::string::npos);
  for (const char* tag : {"svg", "table", "ol", "ul", "div", "details"}) {
    const auto count = [&](const std::string& text) {
      size_t n = 0;
      for (size_t at = html.find(text); at != std::string::npos; at = html.find(text, at + 1)) ++n;
      return n;
    };
    EXPECT_EQ(count(std::string("<") + tag + " ") + count(std::string("<") + tag + ">"),
              count(std::string("</") + tag + ">"))
        << tag;
  }
}

TEST(JsonReport, LeavesSumToTheWall) {
  const Diagnosis g = diagnosis_of([](Simulator& s) { layers(s, 50, 4'000, 9'000); });
  const Json j = parse_json(render_json(g), "test");
  EXPECT_EQ(j["schema_version"], 2);
  EXPECT_EQ(j["verdict"]["id"], "launch_bound");
  int64_t sum = 0;
  for (const auto& [leaf, ns] : *j["devices"][0]["leaves_ns"].if_object()) sum += *ns.if_int();
  EXPECT_EQ(j["devices"][0]["wall_ns"], sum);
  EXPECT_EQ(j["steps"]["count"], 29 - *j["steps"]["warm_up"].if_int());
  EXPECT_GT(j["fixes"][0]["speedup_at_most"].number().value(), 1.5);
  for (const char* list : {"fixes", "not_the_cause"}) {
    for (const Json& f : *j[list].if_array()) {
      EXPECT_EQ(f["is_ceiling"].dump() == "true", f["range"].is_null()) << f["id"].dump();
      EXPECT_EQ(f["step_ns"].is_null(), f["id"] == "batch" || f["id"] == "processes")
          << f["id"].dump();
    }
  }
}

TEST(Reports, WhatGivingMemoryBackCostsIsNoCeiling) {
  const Diagnosis g = diagnosis_of([](Simulator& s) {
    s.call("cudaMalloc", 2'000'000);
    layers(s, 20, 50'000, 3'000);
    s.call("cudaFree", 2'000'000);
  });
  const Json j = parse_json(render_json(g), "test");
  ASSERT_EQ(j["fixes"][0]["id"], "allocator");
  EXPECT_EQ(j["fixes"][0]["is_ceiling"], false);
  EXPECT_NE(render_text(g).find("no allocation in the step   about "), std::string::npos);
  EXPECT_NE(render_html(g).find("<b>no allocation in the step</b>, about "), std::string::npos);
}

TEST(Compare, ShowsEachLeafAndHoldsGates) {
  const Diagnosis slow = diagnosis_of([](Simulator&s) { layers(s, 50, 20'000, 40'000); }),
                  fast = diagnosis_of([](Simulator&s) { layers(s, 50, 20'000, 5'000); });
  const Comparison better = compare(slow, fast, {parse_gate("step>3%"), parse_gate("idle > 0")});
  EXPECT_TRUE(better.failed.empty());
  EXPECT_NE(better.text.find("idle: host code"), std::string::npos);
  const Comparison worse = compare(fast, slow, {parse_gate("step>3%"), parse_gate("tensor>5%")});
  ASSERT_EQ(worse.failed.size(), 1u);
  EXPECT_NE(worse.failed[0].find("step rose"), std::string::npos);
}

TEST(Compare, PutsCountersSideBySide) {
  Diagnosis a = diagnosis_of([](Simulator& s) { layers(s, 50, 20'000, 40'000); });
  Diagnosis b = a;
  const CounterInfo& power = *counter_info("power");
  a.counters.values.push_back({&power, 0, {300, 300, 300, 1}, 300, 300});
  EXPECT_EQ(compare(a, b, {}).text.find("seen: power"), std::string::npos);
  b.counters.values.push_back({&power, 0, {450, 450, 450, 1}, 450, 450});
  const std::string text = compare(a, b, {}).text;
  EXPECT_NE(text.find("seen: power"), std::string::npos);
  EXPECT_NE(text.find("+50.0%"), std::string::npos);
}

TEST(Compare, GatesNameTheirMistakes) {
  const struct {
    const char *text, *says;
  } cases[] = {{"step", "no '>'"},
               {"stp>3%", "did you mean 'step'"},
               {"step>x%", "no percentage"},
               {"step>-1%", "no percentage"},
               {"step>nan", "no percentage"}};
  for (const auto& c : cases) {
    try {
      parse_gate(c.text);
      FAIL() << c.text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(c.says), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace saturate::observe
