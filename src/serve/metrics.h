// SPDX-License-Identifier: Apache-2.0
// Counts of a server as Prometheus reads them.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace saturate::serve {

// Values by label, in the order of the labels. From any thread.
class Histogram {
 public:
  void add(double seconds) noexcept;
  // Appends the samples of `name`{labels}; labels as `a="b"` or "".
  void write(std::string& out, const std::string& name, const std::string& labels) const;

 private:
  static constexpr std::array<double, 14> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                     0.25,  0.5,    1,     2.5,  5,     10,   30};
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> sum_ns_{0};
};

// Answers by path and status; every path stays, so those of clients are not for it as they come.
class RequestMetrics {
 public:
  void add(const std::string& path, int status, double seconds);
  void write(std::string& out) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> answers_;
  std::map<std::string, Histogram> seconds_;
};

// "# HELP" and "# TYPE" of a metric, and a sample.
void write_metric(std::string& out, const std::string& name, const char* type, const char* help);
void write_sample(std::string& out, const std::string& name, const std::string& labels,
                  double value);
// `text` as the value of a label, quotes and all.
std::string quoted_label(const std::string& text);

}  // namespace saturate::serve
