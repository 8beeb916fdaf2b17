// SPDX-License-Identifier: Apache-2.0
// What a watched command leaves, and its diagnosis.
#pragma once
#include <string>
#include <vector>

#include "apps/commands.h"
#include "observe/launcher/launcher.h"
#include "observe/ranks/rank_traces.h"
#include "observe/report/diagnosis.h"

namespace saturate::apps {

// A folder for captures: the one to keep, or one that goes away.
class CaptureFolder {
 public:
  // `keep` empty: one of the temporary folder. Errors    io, invalid_argument for one with files.
  explicit CaptureFolder(const std::string& keep);
  ~CaptureFolder();
  CaptureFolder(const CaptureFolder&) = delete;
  CaptureFolder& operator=(const CaptureFolder&) = delete;
  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }
  // Whether a process was recorded that did not end before its first records.
  bool has_records() const;

 private:
  bool kept_, made_ = false;
  std::string path_;
};

// The ranks in a capture of several processes, which may be none.
std::vector<observe::RankTrace> ranks_in(const std::string& path, const std::string& name);

// Of all ranks or of the one process; `name` is for the report.
observe::Diagnosis diagnose_capture(const std::string& path, const std::string& name,
                                    const DoctorOptions& options);

// Without the folder's: the options of a watched command.
observe::LaunchOptions launch_options(const DoctorOptions& options, const std::string& folder);

// Errors    Error{unsupported, invalid_argument} when no process was recorded.
void check_captured(const observe::LaunchResult& result, const std::string& folder);

}  // namespace saturate::apps
