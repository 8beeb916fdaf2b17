// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace saturate::observe {

struct LaunchOptions {
  std::vector<std::string> command;
  std::string folder;                  // where the captures go; must exist
  std::string library;                 // the injected library; empty: found beside this program
  std::string cupti;                   // libcupti to use; empty: the program's own
  double delay_s = 0, duration_s = 0;  // capture from then on, for so long; 0: to the end
  bool memory = false;       // also what the program allocates, and what its waits wait for
  bool graph_nodes = false;  // record graphs kernel by kernel
  // For runs that are compared. The environment is set for the command alone; `cores` are those it
  // may use, empty: those of this process; `output` takes both of its streams, and it has no input.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<int> cores;
  std::string output;
  // Descendants are ended after so long, or 5 s after this process was asked to end; 0: never.
  double timeout_s = 0;
};

struct LaunchResult {
  int exit_code = 0;     // the command's; 128 + the signal that ended it, as shells count
  int64_t captured = 0;  // processes with a capture
  double wall_s = 0;
  int64_t page_faults = 0;  // without reading from a disk: of what ended and was waited for
  bool timed_out = false, interrupted = false;  // this process was asked to end
  std::string no_gpu;                 // why the driver could not be asked; empty when it could
  std::vector<std::string> failures;  // what processes said that could not be captured
};

// A library of this program, where it was installed or built; "" when it is not there.
std::string installed_library(const std::string& name);

// Runs the command with the capture library injected and waits for it and for nothing else: its
// standard streams are its own, signals sent to this process are passed on to it. Meanwhile samples
// the threads of the process tree into host.sat of the folder. The command sees no difference but
// environment variables. Call from a program with one thread: signals are blocked meanwhile.
// Errors    Error{invalid_argument} when another tool's library is to be injected already or the
// command cannot be run, Error{unsupported} when the library is missing, Error{io}.
LaunchResult run_captured(const LaunchOptions& options);

}  // namespace saturate::observe
