// SPDX-License-Identifier: Apache-2.0
#include "train/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/html.h"
#include "base/line_chart.h"

namespace saturate::train {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Tags open and close in order, and quotes of attributes pair up: catches a text that breaks out.
std::string first_markup_fault(const std::string& html) {
  std::vector<std::string> open;
  std::string body = html.substr(html.find("<html"));
  body.erase(body.find("<style>"), body.find("</style>") + 8 - body.find("<style>"));
  body.erase(body.find("<script>"), body.find("</script>") + 9 - body.find("<script>"));
  for (size_t at = 0; (at = body.find('<', at)) != body.npos;) {
    const size_t end = body.find('>', at);
    if (end == body.npos) return "no end: " + body.substr(at, 60);
    const std::string tag = body.substr(at + 1, end - at - 1);
    at = end + 1;
    const bool closes = tag.starts_with('/');
    const bool is_void = tag.ends_with('/') || tag.starts_with("meta ");
    const std::string name = tag.substr(closes, tag.find_first_of(" /", 1) - closes);
    if (name.empty() || tag.find('<') != tag.npos || std::count(tag.begin(), tag.end(), '"') % 2) {
      return "malformed: " + tag.substr(0, 200);
    }
    if (closes && (open.empty() || open.back() != name)) return "unexpected </" + name + ">";
    if (closes) {
      open.pop_back();
    } else if (!is_void) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "open: " + open.back();
}

std::vector<MetricsRow> sample_run(int64_t steps) {
  std::vector<MetricsRow> rows;
  rows.push_back(
      RunHeader{0, "2026-01-02T03:04:05Z", {{"model.layers", "6"}}, {{"device", "cpu"}}});
  for (int64_t step = 1; step <= steps; ++step) {
    TrainRow t;
    t.step = step;
    t.epoch = 2;
    t.elapsed_s = static_cast<double>(step);
    t.loss = 5 + 1.0 / static_cast<double>(step);
    t.learning_rate = 1e-4 * static_cast<double>(step);
    t.target_tokens_per_s = 50000;
    t.data_wait = 0.0025;
    t.memory_bytes = 3 * 0x1p30;
    rows.push_back(t);
  }
  rows.push_back(ValidRow{steps, 2, kNotMeasured, 4.5, 30.25, 55.5});
  rows.push_back(SampleRow{steps, 0, "a dog", "ein Hund", "der Hund"});
  return rows;
}

TEST(Report, ShowsWhatTheRunMeasured) {
  auto rows = sample_run(90);
  rows.push_back(RunEnd{90, 95, "finished", {{"test BLEU", "29.75"}}});
  const std::string html = render_report(make_run_report("ende", rows));
  EXPECT_EQ(first_markup_fault(html), "");
  for (const char* part :
       {"<title>ende - Saturate run</title>", "pill done\">finished",
        "90 steps, epoch 2, 1:35 of training", "started 2026-01-02T03:04:05Z",
        "<b>29.75</b><span>test BLEU", "<b>30.25</b>", "<b>4.500</b>", "perplexity 90.02",
        "<b>50.0k</b>", "<b>0.25%</b>", "<b>3.0 GiB</b>", "Loss per target token", "Learning rate",
        "ein Hund", "model.layers", "tok:13a"}) {
    EXPECT_TRUE(has(html, part)) << part;
  }
  EXPECT_FALSE(has(html, "Gradient norm"));  // never measured: no chart
  EXPECT_EQ(html, render_report(make_run_report("ende", rows)));
}

TEST(Report, NamesFurtherSetsAndTests) {
  std::vector<MetricsRow> rows = sample_run(3);
  rows.push_back(ValidRow{3, 2, kNotMeasured, 6.5, 20.25, 45.5, "other"});
  rows.push_back(TestRow{.step = 3,
                         .set = "<test>",
                         .model_step = 2,
                         .loss = 4.25,
                         .perplexity = 70.105,
                         .bleu = 31.5,
                         .chrf = 56.5});
  const RunReport report = make_run_report("x", rows);
  EXPECT_EQ(report.valid.size(), 1u);
  EXPECT_EQ(report.more_valid.size(), 1u);
  const std::string html = render_report(report);
  EXPECT_TRUE(has(html, "Validation BLEU and chrF2, other"));
  EXPECT_TRUE(has(html, "best valid BLEU, step 3"));
  EXPECT_TRUE(has(html, "30.25"));
  EXPECT_TRUE(has(html,
                  "<tr><td>&lt;test&gt;</td><td>31.50</td><td>56.50</td><td>4.2500</td>"
                  "<td>70.11</td><td>2</td></tr>") ||
              has(html, "<td>70.10</td>"));
  EXPECT_EQ(first_markup_fault(html), "");
}

TEST(Report, ShowsWhatExpertsGot) {
  std::vector<MetricsRow> rows = sample_run(9);
  for (const int64_t step : {5, 9})
    for (const char* layer : {"encoder 1", "decoder 0"})
      rows.push_back(RoutingRow{.step = step,
                                .layer = layer,
                                .shares = {0.125 * static_cast<double>(step) / 5, 0.5, 0.275},
                                .left_out = 0.02,
                                .dropped = 0.034,
                                .entropy = 0.81,
                                .balance = 1.125});
  const std::string html = render_report(make_run_report("x", rows));
  EXPECT_EQ(first_markup_fault(html), "");
  for (const char* part :
       {"Load of the busiest expert", "up to step 9", "<th>encoder 1</th>", ">22.5</td>",
        ">50.0</td>", "<td>3.4</td><td>2.0</td><td>81</td><td>1.125</td>"})
    EXPECT_TRUE(has(html, part)) << part;
  EXPECT_EQ(count_of(html, "<th>decoder 0</th>"), 1u);  // of the last step alone
  EXPECT_FALSE(has(render_report(make_run_report("x", sample_run(9))), "Experts"));
}

TEST(Report, NeedsNoNetwork) {
  const std::string html = render_report(make_run_report("ende", sample_run(3)));
  for (const char* part : {"src=", "href=", "@import", "fetch(", "url(http", "https://"}) {
    EXPECT_FALSE(has(html, part)) << part;
  }
  // The only address is the name of the SVG namespace.
  EXPECT_EQ(count_of(html, "http:"), count_of(html, "http://www.w3.org/2000/svg"));
}

TEST(Report, TextOfTheUserCannotBecomeMarkup) {
  const std::string evil = "</td><script>alert('x')</script><img src=x onerror=\"y\">&\x01\xff";
  std::vector<MetricsRow> rows = sample_run(2);
  rows.push_back(SampleRow{2, 1, evil, evil, evil});
  rows.push_back(SampleRow{3, 1, evil, evil, evil});
  rows.push_back(RunHeader{2, evil, {{evil, evil}}, {{evil, evil}}});
  rows.push_back(RunEnd{3, 1, evil, {{evil, evil}}});
  const std::string html = render_report(make_run_report(evil, rows));
  EXPECT_EQ(first_markup_fault(html), "");
  EXPECT_EQ(count_of(html, "<script>"), 1u);
  EXPECT_FALSE(has(html, "<img"));
  EXPECT_EQ(escape_html(evil),
            "&lt;/td&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&lt;img src=x "
            "onerror=&quot;y&quot;&gt;&amp;\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Report, StandsWithoutAnyRow) {
  const std::string html = render_report(make_run_report("empty", {}));
  EXPECT_EQ(first_markup_fault(html), "");
  EXPECT_TRUE(has(html, "not finished"));
  EXPECT_EQ(count_of(html, "<svg"), 0u);
}

TEST(Report, ResumeReopensTheRun) {
  auto rows = sample_run(10);
  rows.push_back(RunEnd{10, 10, "interrupted by SIGTERM", {}});
  EXPECT_TRUE(has(render_report(make_run_report("r", rows)), "interrupted by SIGTERM"));
  rows.push_back(RunHeader{10, "2026-01-03T00:00:00Z", {}, {}});
  const std::string html = render_report(make_run_report("r", rows));
  EXPECT_TRUE(has(html, "not finished"));
  EXPECT_TRUE(has(html, "resumed 1x"));
  EXPECT_TRUE(has(html, "resumed at step 10"));
}

TEST(Report, EarlierTranslationsAreKept) {
  std::vector<MetricsRow> rows;
  for (int64_t step = 0; step < 100; ++step) {
    rows.push_back(SampleRow{step, 0, "s", "version" + std::to_string(step) + ".", "r"});
  }
  const std::string html = render_report(make_run_report("r", rows));
  EXPECT_EQ(count_of(html, "version"), 1u + 8u);
  EXPECT_TRUE(has(html, "<td>version99."));
  EXPECT_TRUE(has(html, "</i>version0."));
}

TEST(Report, IsWrittenIntoTheRunFolder) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("saturate_report_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  EXPECT_THROW(write_report(folder), Error);
  {
    MetricsLog log(folder / "metrics.jsonl");
    for (const auto& row : sample_run(5)) log.write(row);
  }
  const auto page = write_report(folder / "");
  std::ifstream in(page);
  const std::string html = (std::stringstream() << in.rdbuf()).str();
  EXPECT_EQ(page.filename(), "report.html");
  EXPECT_EQ(html, render_report(make_run_report(folder.filename().string(), sample_run(5))));
  EXPECT_FALSE(std::filesystem::exists(folder / "report.html.tmp"));
  std::filesystem::remove_all(folder);
}

TEST(ReportChart, TicksAreRound) {
  EXPECT_DOUBLE_EQ(tick_step(0, 10, 5), 2);
  EXPECT_DOUBLE_EQ(tick_step(0, 11, 5), 5);
  EXPECT_DOUBLE_EQ(tick_step(0, 0.0007, 5), 0.0002);
  EXPECT_DOUBLE_EQ(tick_step(0, 30000, 6), 5000);
}

Chart chart_of(std::vector<double> y) {
  Chart chart{.title = "Loss", .unit = "", .series = {{"loss", {}, std::move(y)}}, .marks = {}};
  for (size_t i = 0; i < chart.series[0].y.size(); ++i) {
    chart.series[0].x.push_back(static_cast<double>(i));
  }
  return chart;
}
// The commands of the one line.
std::string line_of(const std::string& svg) {
  const std::string begin = "class=\"line s0\" d=\"";
  const size_t at = svg.find(begin) + begin.size();
  return svg.substr(at, svg.find('"', at) - at);
}

TEST(ReportChart, DrawsToScale) {
  // The drawing area is x 58 to 626, y 222 (low) to 10 (high); the values span whole ticks, 0
  // to 10.
  EXPECT_EQ(line_of(render_chart(chart_of({0, 10, 5}))), "M58.0 222.0h0L342.0 10.0L626.0 116.0");
}

TEST(ReportChart, ValuesThatAreNotFiniteLeaveGaps) {
  const std::string svg = render_chart(chart_of({0, kNotMeasured, 10, INFINITY, 10}));
  EXPECT_EQ(line_of(svg), "M58.0 222.0h0M342.0 10.0h0M626.0 10.0h0");
  EXPECT_TRUE(has(svg, "data-y0=\"[0,null,10,null,10]\""));
  EXPECT_EQ(render_chart(chart_of({kNotMeasured, INFINITY})), "");
  EXPECT_EQ(render_chart(chart_of({})), "");
}

TEST(ReportChart, OneValueAndEqualValuesStand) {
  for (const double v : {0.0, -3.0, 1e-12, 1e12}) {
    for (const auto& svg : {render_chart(chart_of({v})), render_chart(chart_of({v, v, v}))}) {
      EXPECT_TRUE(has(svg, "class=\"line"));
      EXPECT_FALSE(has(svg, "nan") || has(svg, "inf")) << v;
    }
  }
}

TEST(ReportChart, LongSeriesAreThinnedToMeanAndRange) {
  std::vector<double> y;
  for (int i = 0; i < 100000; ++i) y.push_back(i % 2 == 0 ? 1 : 3);
  const std::string svg = render_chart(chart_of(std::move(y)));
  EXPECT_LT(svg.size(), 30000u);
  EXPECT_TRUE(has(svg, "class=\"band"));
  EXPECT_TRUE(has(svg, "loss last 2"));  // the mean of 1 and 3
  EXPECT_EQ(count_of(line_of(svg), "L"), 399u);
}

}  // namespace
}  // namespace saturate::train
