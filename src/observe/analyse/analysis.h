// SPDX-License-Identifier: Apache-2.0
// What the doctor found in a capture; made by Analyser, shown by the reports.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "observe/analyse/host_lines.h"
#include "observe/analyse/leaf.h"
#include "observe/trace/curve.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Host code between two calls up to here is dispatch, which a captured graph does away with; longer
// stretches are work of the program that stays. Measured on an H200 host with PyTorch 2.11 under
// its profiler: a backward pass starts and ends its thread in 0.25 to 0.65 ms each.
constexpr int64_t kDispatchNs = 1'000'000;
// Of several stretches with nothing issued between them.
constexpr int64_t kManyPiecesNs = 2 * kDispatchNs;
constexpr double kDrifts = 1.1;  // of the step time, from first quarter to last: worth a word
constexpr int64_t kSmallCopy = 64 << 10;  // bytes; below, PCIe latency outweighs the transfer

struct StepStat {
  int64_t start_ns = 0, end_ns = 0;
  Budget budget;
  int64_t kernels = 0;  // and graphs, that began in it
};

struct NamedTime {
  int64_t ns = 0, count = 0;
};

struct KernelStat {
  std::string name;
  Leaf leaf = Leaf::other_kernel;  // of most of its time
  int64_t count = 0, total_ns = 0, longest_ns = 0;
  int64_t blocks = 0, block_threads = 0;  // of the last launch
  // Of launches that are is_serial(): their time, and the blocks of the last of them.
  int64_t serial_ns = 0, serial_blocks = 0;
  std::map<Leaf, int64_t> by_leaf;
  // Of the launches whose operator says what it had to do; 0 where none does.
  double flops = 0, bytes = 0;
  int64_t work_ns = 0;  // their time
  Precision precision = Precision::unknown;
};

struct CopyStat {
  int64_t count = 0, bytes = 0, total_ns = 0;
  int64_t small = 0, small_ns = 0;  // of those below 64 KiB
};

struct TimelineBucket {
  Budget budget;
};

// What the program held; empty where the capture does not say.
struct MemoryUse {
  Curve allocated, reserved;  // bytes
  double growth = 1;          // lasting, of what is allocated at most from step to step
  bool by_calls = false;      // by the program's calls to CUDA; else by its allocator's account
};

struct DeviceAnalysis {
  uint32_t device = 0;
  DeviceInfo info;
  int64_t from_ns = 0, to_ns = 0;                              // analysed
  Budget budget;                                               // sums to to_ns - from_ns exactly
  std::map<std::pair<Leaf, std::string>, NamedTime> evidence;  // idle leaves by call or span
  std::vector<KernelStat> kernels;                             // longest total first
  std::map<std::pair<CopyKind, HostMemory>, CopyStat> copies;
  // Parts of the budget's idle leaves, kept apart because another remedy takes them away: gaps in a
  // run of small copies to the device, launches after a wait that had emptied the queue, and
  // stretches of host code, sleep or lack of a core too long to be dispatch.
  Budget between_copies, after_wait, long_host;
  int64_t unfilled_ns =
      0;  // of low-grid and tiny kernels, times the share of the device left empty
  int64_t ops = 0;
  int64_t launches = 0, launch_ns = 0;  // calls that issued kernels or graphs, and the time in them
  int64_t bucket_ns = 0;
  std::vector<TimelineBucket> timeline;  // from from_ns on
  MemoryUse memory;
  HostLines host_lines;  // empty where no stacks were sampled
  // Lines that gave the device its work; those that copied, those of products that could have fewer
  // bits, and of what other fixes take away.
  WorkLines work_lines, copy_lines, product_lines, odd_product_lines, device_copy_lines,
      kernel_copy_lines, softmax_lines, double_lines, transform_lines, sort_lines,
      communication_lines;
  // Of the time in which the launching thread waited for data or was blocked, half a millisecond or
  // more at a time: all of it, and what other threads waited for meanwhile, by kind and name.
  int64_t waited_ns = 0;
  std::map<std::pair<SpanKind, std::string>, int64_t> beside;
};

struct StepAnalysis {
  std::string rule;  // how steps were detected
  bool found = false;
  uint32_t device = 0;          // whose time bounds them
  std::vector<StepStat> steps;  // without warm-up; at most 65,536
  int64_t count = 0;            // also those beyond
  int64_t warm_up = 0;
  int64_t irregular = 0;  // stretches between steps that are none
  double mean_ns = 0, median_ns = 0, p10_ns = 0, p90_ns = 0;
  double stretch_ns = 0;  // mean from one begin to the next, irregular stretches too
  double drift = 1;       // of the step time from first quarter to last; reported above kDrifts
};

struct Analysis {
  std::string source, framework;
  std::vector<std::string> notes;
  int64_t records = 0, dropped = 0, malformed = 0;
  bool shapes = false;          // of operators are in the capture
  CopyRates copy_rates;         // of the machine
  double slowdown = 1;          // of the program while it was recorded; all times here are with it
  double slowdown_by_pace = 1;  // what its pace says, before what recording can cost bounds it
  std::vector<HostUse> host_uses;  // of the whole run
  StepAnalysis steps;
  std::vector<DeviceAnalysis> devices;  // busiest first
};

}  // namespace saturate::observe
