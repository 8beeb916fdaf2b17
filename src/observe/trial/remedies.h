// SPDX-License-Identifier: Apache-2.0
// Remedies of a report that the environment of a program can apply, its files untouched.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "observe/report/diagnosis.h"

namespace saturate::observe {

// What the machine and the environment of the watched command allow.
struct TrialHost {
  std::map<std::string, std::string> environment;  // what the command inherits
  int cores = 1;                                   // that this process may use
  double faults_per_s = 0;                         // page faults of the watched run
  std::vector<int> near_cores;  // those of them beside the GPU; empty: all are, or not known
  std::string staging;          // libsaturate_staging.so; empty: not to be found
};

struct Remedy {
  std::string id, title;  // the id is that of JSON and never changes
  std::string why;        // what the report says that calls for it
  std::string keep;       // how to have it for good; empty: `environment` before the command
  std::string caveat;
  bool changes_results = false;
  std::optional<Fix> promise;  // of the report; empty: it promises nothing for this
  // How it is applied.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> python;  // what sitecustomize.py is to change
  int workers = 0;                  // of loaders
  bool staged = false;              // pageable copies through pinned blocks
  std::vector<int> cores;
};

// Those that the causes in the report call for: a fix that is worth it, or 5% of the time in what it
// removes. What promises most comes first.
std::vector<Remedy> choose_remedies(const Diagnosis& diagnosis, const TrialHost& host);

// All of them at once. Of two values of one variable that of the first stays.
Remedy together(const std::vector<Remedy>& remedies);

// Why the unchanged run says that this remedy would change nothing, from what sitecustomize.py
// noted there; empty when it may.
std::string no_use(const Remedy& remedy, const std::vector<std::string>& notes);

// Numbers of "0-3,8,10-11", as the kernel writes sets of cores; what is no number is left out.
std::vector<int> parse_core_list(const std::string& text);

// The same the other way.
std::string core_list(const std::vector<int>& cores);

}  // namespace saturate::observe
