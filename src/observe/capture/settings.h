// SPDX-License-Identifier: Apache-2.0
// What the launcher passes to the library in the watched program, by environment variables, which also
// reach that program's children.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace saturate::observe::cupti {

constexpr const char* kInjectionVariable = "CUDA_INJECTION64_PATH";  // CUDA's own
constexpr const char* kFolderVariable = "SATURATE_CAPTURE_FOLDER";
constexpr const char* kCuptiVariable = "SATURATE_CAPTURE_CUPTI";  // path of libcupti
constexpr const char* kDelayVariable = "SATURATE_CAPTURE_DELAY_MS";
constexpr const char* kDurationVariable = "SATURATE_CAPTURE_DURATION_MS";  // 0: to the end
constexpr const char* kMemoryVariable = "SATURATE_CAPTURE_MEMORY";  // 1: also memory and waits

// Parts of the capture to do without, separated by commas, where a program does not stand it and the
// part that it does not stand is looked for. See Settings::lacks().
constexpr const char* kWithoutVariable = "SATURATE_CAPTURE_WITHOUT";
constexpr const char* kNodesVariable = "SATURATE_CAPTURE_GRAPH_NODES";  // 1: kernels of graphs

struct Settings {
  std::string folder;  // for one file a process; empty: capture nothing
  std::string cupti;
  int64_t delay_ms = 0, duration_ms = 0;
  bool graph_nodes = false;  // record each kernel of a graph, not the graph
  bool memory = false;       // follow allocations, and record what waits wait for
  std::string without;

  // flush: CUPTI is asked for records at the end alone; small: its buffers have 1 MiB from the first
  // on; graphs, kernels, copies, calls: the records; code: kernels' instructions are not looked at; hooks: import tables and signals stay as they
  // are; ids: threads have CUPTI's numbers.
  bool lacks(std::string_view part) const;
};

// From the environment; what is not a number counts as 0.
Settings read_settings();

}  // namespace saturate::observe::cupti
