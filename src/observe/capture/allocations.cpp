// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/allocations.h"

#include <algorithm>
#include <optional>

namespace saturate::observe::cupti {
namespace {

bool on_device(uint32_t memory) {
  return memory == kDeviceMemory || memory == kArrayMemory || memory == kManagedMemory ||
         memory == kDeviceStaticMemory || memory == kManagedStaticMemory;
}

}  // namespace

void Allocations::apply(const MemoryActivity& r) {
  Device& d = devices_[r.device];
  const uint64_t pool = r.pool.type == kLocalPool ? r.pool.address : 0;
  if (pool != 0) d.pools[pool].size = static_cast<int64_t>(r.pool.size);
  const auto change = [&](Device& device, const Block& b, int64_t bytes) {
    device.allocated += bytes;
    (b.pool == 0 ? device.plain : device.pools[b.pool].used) += bytes;
  };
  const auto known = blocks_.find(r.address);
  if (r.operation == kAllocation) {
    // Given back without a record of it, or the same reported twice.
    if (known != blocks_.end())
      change(devices_[known->second.device], known->second, -known->second.bytes);
    const Block b{static_cast<int64_t>(r.bytes), r.device, pool};
    blocks_[r.address] = b;
    change(d, b, b.bytes);
  } else if (r.operation == kRelease && known != blocks_.end()) {
    change(devices_[known->second.device], known->second, -known->second.bytes);
    blocks_.erase(known);
  }
}

MemorySample Allocations::sample(uint32_t device, int64_t time_ns) const {
  const Device& d = devices_.at(device);
  int64_t reserved = d.plain;
  for (const auto& [address, pool] : d.pools) reserved += std::max(pool.used, pool.size);
  return {time_ns, d.allocated, reserved, device};
}

void Allocations::write(std::vector<MemorySample>& samples) {
  std::stable_sort(
      records_.begin(), records_.end(),
      [](const MemoryActivity& a, const MemoryActivity& b) { return a.time < b.time; });
  struct Open {
    std::optional<MemorySample> most, last;
  };
  std::map<uint32_t, Open> open;
  const auto close = [&](Open& o) {
    if (o.most && o.most != o.last) samples.push_back(*o.most);
    if (o.last) samples.push_back(*o.last);
    o = {};
  };
  for (const MemoryActivity& r : records_) {
    if (!on_device(r.memory) || r.device >= 1024 || r.bytes >> 62 != 0 || r.pool.size >> 62 != 0)
      continue;
    apply(r);
    ++count_;
    const MemorySample now = sample(r.device, static_cast<int64_t>(r.time));
    Open& o = open[r.device];
    if (o.last && now.time_ns / kSampleNs != o.last->time_ns / kSampleNs) close(o);
    if (!o.most || now.allocated > o.most->allocated) o.most = now;
    o.last = now;
  }
  for (auto& [device, o] : open) close(o);
  records_.clear();
}

}  // namespace saturate::observe::cupti
