// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "observe/trace/host_use.h"
#include "observe/trace/pauses.h"
#include "observe/trace/record.h"

namespace saturate::observe {

// Texts by number. References stay valid while the table lives; number 0 is "".
class NameTable {
 public:
  NameTable() { add(""); }
  NameTable(const NameTable& other) { *this = other; }
  NameTable& operator=(const NameTable& other);
  NameTable(NameTable&&) = default;
  NameTable& operator=(NameTable&&) = default;

  uint32_t add(std::string_view text);
  const std::string& operator[](uint32_t id) const { return texts_[id]; }
  size_t size() const { return texts_.size(); }

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, uint32_t> ids_;
};

// Keys by number, in order of first use.
template <class Key>
class KeyTable {
 public:
  uint32_t add(const Key& key) {
    const auto [at, fresh] = ids_.try_emplace(key, static_cast<uint32_t>(keys_.size()));
    if (fresh) keys_.push_back(key);
    return at->second;
  }
  const Key& operator[](uint32_t id) const { return keys_[id]; }
  size_t size() const { return keys_.size(); }

 private:
  std::vector<Key> keys_;
  std::map<Key, uint32_t> ids_;
};

struct DeviceInfo {
  std::string name;
  int64_t multiprocessors = 0;  // 0: unknown
};

// What large copies between host and device reach on the machine, in GB/s (bytes a nanosecond); 0:
// not known. "in" is to the device. Pageable memory goes through blocks that the driver keeps pinned.
struct CopyRates {
  std::string device;  // the one it was measured on
  std::string bus;     // its PCI address, "0000:17:00.0"
  double pinned_in = 0, pinned_out = 0, pageable_in = 0, pageable_out = 0;
  bool known() const { return pinned_in > 0; }
  // The faster of each: what bounds a copy must not be too low. Names stay those of the first.
  void take(const CopyRates& other);
  friend bool operator==(const CopyRates&, const CopyRates&) = default;
};

constexpr const char* kKinetoSource = "Kineto trace";  // torch.profiler's

// The name of a wait for a device that is no call of CUDA (read/device_waits.h).
constexpr const char* kDeviceWait = "a wait for the device, no call of CUDA";
// And of what a library does before a copy to the device (read/staged_copies.h).
constexpr const char* kStagedCopy = "memcpy to pinned memory, no call of CUDA";

// Ends the name of a kernel whose code computes in float64 where its name did not say so
// (capture/kernel_code.h).
constexpr const char* kFloat64Code = " [float64]";

// A capture, or a window of one. 56, 32 and 32 bytes a record and each name once.
struct Trace {
  NameTable names;
  KeyTable<StreamKey> streams;
  KeyTable<ThreadKey> threads;
  std::map<uint32_t, DeviceInfo> devices;
  std::vector<DeviceOp> ops;
  std::vector<HostCall> calls;
  std::vector<HostSpan> spans;
  std::vector<MemorySample> memory;
  KeyTable<StackNode> stacks;
  std::vector<HostSample> samples;          // of stacks, in order within a thread
  std::map<uint32_t, uint32_t> parents;     // of processes, as far as they were watched
  bool memory_by_calls = false;             // of the program's calls to CUDA, not of its allocator
  std::vector<OperatorWork> work;           // in order, of the whole capture
  std::vector<CollectiveNote> collectives;  // by correlation
  std::vector<HostUse> host_uses;           // of the whole run
  std::map<uint32_t, int64_t> rank_of;      // of processes, as far as the source says
  bool shapes = false;                      // the source recorded the shapes of operators' inputs
  std::vector<std::string> notes;           // for the reader of the report: what the source lacked
  std::string source;         // kKinetoSource, "Nsight Systems export", "saturate capture"
  std::string framework;      // "PyTorch", ...; empty when not known
  std::vector<Pause> pauses;  // times without records, in the order of the source
  CopyRates copy_rates;       // of the machine, measured beside the program
  double slowdown = 1;        // of the program while it was recorded; 1: not known
  int64_t dropped = 0;        // records that the source says it lost
  int64_t malformed = 0;      // records left out because they contradict themselves

  size_t records() const { return ops.size() + calls.size() + spans.size(); }

  // Sorts all records by all their fields, with names and keys compared by value, so that traces
  // with the same records in any order become the same. Drops records that end before they start
  // or last more than 11 days, counting them in `malformed`. Cost: O(n log n).
  // Errors    Error{invalid_argument} when the records spread over more than 31 years, or add up to
  // more than 3: sums of their times would not fit.
  void sort();
};

}  // namespace saturate::observe
