// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "observe/capture/cupti_abi.h"
#include "observe/trace/trace.h"

namespace saturate::observe::cupti {

// Follows what a process takes of its devices' memory and gives back, from CUPTI's records of its
// calls (cudaMalloc, cudaMallocAsync, cudaMallocManaged, arrays and variables of modules), and
// writes it down as samples. Of device memory `allocated` is what is in use, `reserved` that and
// what pools hold beside it. Not for use by several threads at once.
class Allocations {
 public:
  static constexpr int64_t kSampleNs = 5'000'000;

  void add(const MemoryActivity& record) { records_.push_back(record); }
  // Takes account of all that was added, in order of time, and appends to `samples` of every
  // stretch of kSampleNs with a change the most that was allocated and the last.
  void write(std::vector<MemorySample>& samples);
  int64_t records() const { return count_; }  // so far

 private:
  struct Block {
    int64_t bytes = 0;
    uint32_t device = 0;
    uint64_t pool = 0;  // 0: none
  };
  struct Pool {
    int64_t used = 0, size = 0;
  };
  struct Device {
    int64_t allocated = 0, plain = 0;  // plain: outside of pools
    std::map<uint64_t, Pool> pools;
  };
  void apply(const MemoryActivity& record);
  MemorySample sample(uint32_t device, int64_t time_ns) const;

  std::vector<MemoryActivity> records_;
  std::unordered_map<uint64_t, Block> blocks_;  // by address
  std::map<uint32_t, Device> devices_;
  int64_t count_ = 0;
};

}  // namespace saturate::observe::cupti
