// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/buffers.h"

#include <algorithm>
#include <cstdlib>

namespace saturate::observe::cupti {
namespace {

uint8_t* allocate(size_t bytes) { return static_cast<uint8_t*>(std::aligned_alloc(64, bytes)); }

}  // namespace

Buffer Buffers::request(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const int64_t since = now_ns - last_request_ns_;
  last_request_ns_ = now_ns;
  if (since < kFastNs) size_ = std::min(kSize, size_ * 2);
  if (since > kSlowNs) size_ = std::max(kLeastSize, size_ / 2);
  if (free_.empty() && all_.size() < kMost) {
    if (uint8_t* fresh = allocate(kSize)) {
      all_.push_back(fresh);
      free_.push_back(fresh);
    }
  }
  if (free_.empty()) {
    uint8_t* data = allocate(kWasteSize);
    if (data == nullptr) return {};
    waste_.push_back(data);
    ++out_;
    return {data, kWasteSize};
  }
  uint8_t* data = free_.back();
  free_.pop_back();
  ++out_;
  return {data, size_};
}

bool Buffers::completed(uint8_t* data, size_t valid) {
  const std::lock_guard lock(mutex_);
  if (const auto at = std::find(waste_.begin(), waste_.end(), data); at != waste_.end()) {
    waste_.erase(at);
    std::free(data);
    wasted_ += static_cast<int64_t>(valid);
    --out_;
    return true;
  }
  if (std::find(all_.begin(), all_.end(), data) == all_.end()) return false;
  --out_;
  ++completions_;
  filled_.push_back({data, valid});
  return true;
}

std::vector<Buffer> Buffers::take_filled() {
  std::vector<Buffer> taken;
  const std::lock_guard lock(mutex_);
  taken.swap(filled_);
  return taken;
}

void Buffers::give_back(const std::vector<Buffer>& buffers) {
  const std::lock_guard lock(mutex_);
  for (const Buffer& b : buffers) free_.push_back(b.data);
}

int64_t Buffers::wasted_bytes() const {
  const std::lock_guard lock(mutex_);
  return wasted_;
}

int64_t Buffers::handed_out() const {
  const std::lock_guard lock(mutex_);
  return out_;
}

int64_t Buffers::completions() const {
  const std::lock_guard lock(mutex_);
  return completions_;
}

}  // namespace saturate::observe::cupti
