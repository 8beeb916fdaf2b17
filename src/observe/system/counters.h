// SPDX-License-Identifier: Apache-2.0
// What GPUs and processes of a run were seen to do from outside while it was recorded: the numbers
// people know, each with what it means. They stand beside the attribution and explain none of it.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "observe/system/range.h"
#include "observe/system/snapshot.h"
#include "observe/trace/curve.h"

namespace saturate::observe {

enum class CounterUnit : uint8_t { percent, bytes, bytes_per_s, watts, mhz, cores, per_s };

struct CounterInfo {
  const char *id, *title;  // the id is that of JSON and never changes
  CounterUnit unit;
  bool per_step;        // a rate: what a step takes of it says more
  const char* meaning;  // what it does and does not say
};

struct Counter {
  const CounterInfo* info = nullptr;
  int gpu = -1;  // -1: the processes of the run, or the machine
  Range range;
  double first = 0, last = 0;  // samples
};

// A GPU's clock while it had work.
struct ClockView {
  int samples = 0;                    // with work
  int held = 0;                       // of them with a reason that holds the clock down
  std::map<uint64_t, int> by_reason;  // of them by bit of ClockReason
  double mean_mhz = 0, full_mhz = 0;  // full: the highest of the chip, 0 when not known
  // Of the highest clock, where samples that nothing held count as full: what the work got of it.
  double speed = 1;
};
// "power cap 80%, thermal 3%": shares of the samples with work; empty when nothing held it.
std::string held_by(const ClockView& clock);

struct Counters {
  double seconds = 0;  // of looking
  std::string no_gpu;  // why there is nothing of GPUs; empty when there is
  std::vector<Counter> values;
  std::map<int, std::string> gpus;  // names
  // Bytes used, per GPU: by the run's processes; by all where the driver does not tell whose it is.
  std::map<int, Curve> memory;
  std::map<int, ClockView> clocks;
  std::map<int, int> neighbours;  // processes of others on a GPU of the run: the most at once
  std::map<int, std::string> clocks_held_by;  // reasons seen while it ran, per GPU, "none" too
  bool empty() const { return values.empty(); }
};

// All counters there are, in the order of reports.
std::span<const CounterInfo> counter_infos();
// Null when there is none of that id.
const CounterInfo* counter_info(std::string_view id);

// Adds up samples of a run: the process `root`, its descendants and the GPUs that they use.
class CounterCollector {
 public:
  explicit CounterCollector(int64_t root) : root_(root) {}
  // A snapshot whose sampler shows `root` too; the first has no rates and is passed over.
  void add(const Snapshot& snapshot);
  // What was seen; by GPU, then in the order of the list of counters.
  Counters finish() const;

 private:
  struct Sum {
    std::optional<Range> range;
    double first = 0, last = 0;
  };
  void add_memory(int gpu, const std::map<int, int64_t>& own, std::optional<int64_t> all);
  void add_clock(const GpuView& gpu);
  template <class T>
  void put(const char* id, int gpu, const std::optional<T>& value);

  int64_t root_;
  double seconds_ = 0;
  std::string no_gpu_;
  std::map<std::pair<int, size_t>, Sum> sums_;  // GPU, number of the counter
  std::map<int, std::string> gpus_;
  std::map<int, uint64_t> reasons_;
  std::map<int, Curve> memory_;
  std::set<int> own_memory_;  // GPUs whose curve is of the run's processes alone
  std::map<int, ClockView> clocks_;
  std::map<int, int> neighbours_;
};

// To and from counters.json in the folder of a capture. read_counters gives none when `capture` is
// no folder or has no such file.
// Errors    Error{io} when it cannot be written; Error{invalid_argument} when it says nonsense.
void write_counters(const Counters& counters, const std::string& folder);
Counters read_counters(const std::string& capture);

}  // namespace saturate::observe
