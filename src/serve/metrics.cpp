// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <fmt/format.h>

namespace saturate::serve {

void write_metric(std::string& out, const std::string& name, const char* type, const char* help) {
  out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void write_sample(std::string& out, const std::string& name, const std::string& labels,
                  double value) {
  out += labels.empty() ? fmt::format("{} {}\n", name, value)
                        : fmt::format("{}{{{}}} {}\n", name, labels, value);
}

std::string quoted_label(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

void Histogram::add(double seconds) noexcept {
  size_t bucket = 0;
  while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(static_cast<int64_t>(seconds * 1e9), std::memory_order_relaxed);
}

void Histogram::write(std::string& out, const std::string& name, const std::string& labels) const {
  const std::string comma = labels.empty() ? "" : ",";
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < kBounds.size() ? fmt::format("{}", kBounds[i]) : "+Inf";
    write_sample(out, name + "_bucket", fmt::format("{}{}le=\"{}\"", labels, comma, bound),
                 static_cast<double>(below));
  }
  write_sample(out, name + "_sum", labels,
               static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) * 1e-9);
  write_sample(out, name + "_count", labels, static_cast<double>(below));
}

void RequestMetrics::add(const std::string& path, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++answers_[{path, status}];
  seconds_[path].add(seconds);
}

void RequestMetrics::write(std::string& out) const {
  const std::lock_guard lock(mutex_);
  write_metric(out, "saturate_requests_total", "counter", "Answers, by path and status.");
  for (const auto& [key, count] : answers_) {
    write_sample(out, "saturate_requests_total",
                 fmt::format("path={},status=\"{}\"", quoted_label(key.first), key.second),
                 static_cast<double>(count));
  }
  write_metric(out, "saturate_request_seconds", "histogram",
               "From a whole request to the end of its answer.");
  for (const auto& [path, histogram] : seconds_)
    histogram.write(out, "saturate_request_seconds", "path=" + quoted_label(path));
}

}  // namespace saturate::serve
