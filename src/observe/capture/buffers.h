// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace saturate::observe::cupti {

struct Buffer {
  uint8_t* data = nullptr;
  size_t bytes = 0;  // its size, or how much of it is filled
};

// Memory that CUPTI fills and the writer empties, kMostBytes of it at most, made when needed.
// CUPTI keeps a buffer while anything in it is under way on the device, and what it keeps is lost
// when the process ends without notice. So buffers are small, and grow with what lies in them
// since the writer came last: one holds a kShare-th of that, but no less than kLeastSize. However
// fast a program launches, it asks for a few dozen between two turns of the writer.
// When all memory is in use a request gets a small one for waste, whose contents are not kept but
// counted. Safe for any thread; calls nothing but the allocator while it holds its lock.
class Buffers {
 public:
  static constexpr size_t kSize = size_t{1} << 20, kMostBytes = 96 * kSize, kWasteSize = 64 << 10,
                          kLeastSize = 8 << 10, kShare = 8;

  // From now on each has kSize bytes.
  void all_large() { least_ = kSize; }
  // `data` is null when there is no memory at all.
  Buffer request();
  // Of CUPTI's completion; false when the buffer is none of ours.
  bool completed(uint8_t* data, size_t valid);
  std::vector<Buffer> take_filled();
  void give_back(const std::vector<Buffer>& buffers);
  int64_t wasted_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint8_t*, size_t> sizes_;  // of all but those for waste
  std::vector<Buffer> free_, filled_;
  std::vector<uint8_t*> waste_;
  size_t least_ = kLeastSize;
  size_t all_bytes_ = 0, used_bytes_ = 0;  // used: with CUPTI, or filled
  int64_t wasted_ = 0;
};

}  // namespace saturate::observe::cupti
