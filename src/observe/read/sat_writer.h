// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "observe/read/sat_format.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Writes a .sat capture. Each write() appends what the tables of `trace` have gained and all of its
// records, and hands them to the operating system. Errors    Error{io}.
class SatWriter {
 public:
  explicit SatWriter(const std::string& path);
  ~SatWriter();
  SatWriter(const SatWriter&) = delete;
  SatWriter& operator=(const SatWriter&) = delete;

  // The same object each time, with records cleared in between. Records that end before
  // `complete_ns` are all written by now: readers need not wait for stragglers.
  void write(const Trace& trace, int64_t complete_ns);
  void close(const Trace& trace);
  // After a failure: takes off what was not written whole and ends the capture with `note`, for
  // which a full disk then has room. No more may be written.
  void abandon(const std::string& note) noexcept;

 private:
  void block(sat::Block kind, const std::string& payload);
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  size_t names_ = 1, streams_ = 0, threads_ = 0, notes_ = 0, pauses_ = 0, stacks_ = 0, parents_ = 0;
  double slowdown_ = 1;
  int64_t whole_bytes_ = 0;  // in the file when write() returned last
  bool wrote_devices_ = false, wrote_framework_ = false, wrote_copy_rates_ = false;
};

}  // namespace saturate::observe
