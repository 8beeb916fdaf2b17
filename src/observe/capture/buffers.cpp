// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/buffers.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace saturate::observe::cupti {
namespace {

uint8_t* allocate(size_t bytes) { return static_cast<uint8_t*>(std::aligned_alloc(64, bytes)); }

}  // namespace

Buffer Buffers::request() {
  const std::lock_guard lock(mutex_);
  const size_t wanted = std::bit_floor(std::clamp(used_bytes_ / kShare, least_, size_t{kSize}));
  auto found =
      std::find_if(free_.begin(), free_.end(), [&](const Buffer& b) { return b.bytes == wanted; });
  if (found == free_.end() && all_bytes_ + wanted <= kMostBytes) {
    if (uint8_t* fresh = allocate(wanted)) {
      all_bytes_ += wanted;
      sizes_[fresh] = wanted;
      found = free_.insert(free_.end(), {fresh, wanted});
    }
  }
  if (found == free_.end() && !free_.empty()) found = free_.begin();
  if (found == free_.end()) {
    uint8_t* data = allocate(kWasteSize);
    if (data == nullptr) return {};
    waste_.push_back(data);
    return {data, kWasteSize};
  }
  const Buffer given = *found;
  free_.erase(found);
  used_bytes_ += given.bytes;
  return given;
}

bool Buffers::completed(uint8_t* data, size_t valid) {
  const std::lock_guard lock(mutex_);
  if (const auto at = std::find(waste_.begin(), waste_.end(), data); at != waste_.end()) {
    waste_.erase(at);
    std::free(data);
    wasted_ += static_cast<int64_t>(valid);
    return true;
  }
  if (!sizes_.contains(data)) return false;
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
  for (const Buffer& b : buffers) {
    const size_t bytes = sizes_.at(b.data);
    free_.push_back({b.data, bytes});
    used_bytes_ -= bytes;
  }
}

int64_t Buffers::wasted_bytes() const {
  const std::lock_guard lock(mutex_);
  return wasted_;
}

}  // namespace saturate::observe::cupti
