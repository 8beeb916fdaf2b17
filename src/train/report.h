// SPDX-License-Identifier: Apache-2.0
// report.html: what a run did, on one page that needs neither network nor server, nor JavaScript
// but for reading values off the charts. Made from metrics.jsonl alone, so any run folder has one.
#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/metrics_log.h"

namespace saturate::train {

struct RunReport {
  std::string name;               // of the run: its folder
  std::vector<RunHeader> starts;  // the first, then one for each resume
  std::vector<TrainRow> train;
  std::vector<ValidRow> valid;       // of the first set
  std::vector<ValidRow> more_valid;  // of all others, in order
  std::vector<TestRow> tests;
  std::vector<SampleRow> samples;
  std::vector<RoutingRow> routing;
  std::optional<RunEnd> end;  // empty while running, or when killed
};

RunReport make_run_report(std::string name, std::span<const MetricsRow> rows);

// The page as UTF-8 HTML, the same bytes for the same rows. All text of the user is escaped; series
// of more than 400 points are thinned to their means with the range around them.
std::string render_report(const RunReport& report);

// Reads <run_folder>/metrics.jsonl, writes <run_folder>/report.html by way of a temporary name.
// Returns the path of the page. Errors    as read_metrics; io when the page cannot be written.
std::filesystem::path write_report(const std::filesystem::path& run_folder);

}  // namespace saturate::train
