// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace saturate::observe::cupti {

struct Buffer {
  uint8_t* data = nullptr;
  size_t bytes = 0;  // its size, or how much of it is filled
};

// Memory that CUPTI fills and the writer empties: kMost buffers of kSize bytes, made when needed.
// How much of them CUPTI is given follows how fast it fills them: it may keep a buffer until it is
// full, and what it keeps is lost when the process ends without notice.
// When all are in use a request gets a small one for waste, whose contents are not kept but
// counted. Safe for any thread; calls nothing but the allocator while it holds its lock.
class Buffers {
 public:
  static constexpr size_t kSize = size_t{1} << 20, kMost = 96, kWasteSize = 64 << 10,
                          kLeastSize = 8 << 10;
  static constexpr int64_t kFastNs = 50'000'000, kSlowNs = 300'000'000;  // to fill one

  // `data` is null when there is no memory at all.
  Buffer request(int64_t now_ns);
  // Of CUPTI's completion; false when the buffer is none of ours.
  bool completed(uint8_t* data, size_t valid);
  std::vector<Buffer> take_filled();
  void give_back(const std::vector<Buffer>& buffers);
  int64_t wasted_bytes() const;
  int64_t handed_out() const;  // to CUPTI and not yet back
  int64_t completions() const;

 private:
  mutable std::mutex mutex_;
  std::vector<uint8_t*> all_, free_, waste_;
  std::vector<Buffer> filled_;
  size_t size_ = 64 << 10;
  int64_t last_request_ns_ = 0;
  int64_t out_ = 0, wasted_ = 0, completions_ = 0;
};

}  // namespace saturate::observe::cupti
