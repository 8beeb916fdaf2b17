// SPDX-License-Identifier: Apache-2.0
// A step copies 32 MiB to the device, then computes about 3 ms. With the remedy the next batch
// travels from pinned memory on a second stream meanwhile, into the other of two buffers.
#include <vector>

#include "lab/cuda/rig.h"

namespace saturate::lab {
namespace {

constexpr size_t kBytes = 32 << 20;

class PageableCopies final : public Program {
 public:
  PageableCopies(Remedy remedy, Device device)
      : rig_(device), side_(device), x_(Buffer::Where::device, kGridBytes) {
    buffers_.emplace_back(Buffer::Where::device, kBytes);
    if (remedy == Remedy::none) {
      pageable_.assign(kBytes, 1);
      return;
    }
    buffers_.emplace_back(Buffer::Where::device, kBytes);
    pinned_.emplace_back(Buffer::Where::pinned, kBytes);
    for (int i = 0; i < 2; ++i) {
      arrived_.emplace_back(device);
      used_.emplace_back(device);
    }
    fetch();
  }

  void step() override {
    if (pinned_.empty()) {
      rig_.marks.begin();
      copy_to_device(rig_.stream, buffers_[0], pageable_.data(), kBytes);
      rig_.marks.end();
    } else {
      const size_t now = next_;
      arrived_[now].wait_on(rig_.stream);
      next_ = 1 - now;
      fetch();
    }
    for (int i = 0; i < 30; ++i) launch_arithmetic(rig_.stream, x_, kFullGrid, 400);
    if (!pinned_.empty()) used_[1 - next_].record(rig_.stream);
  }

  Marks* marks() override { return pinned_.empty() ? &rig_.marks : nullptr; }

 private:
  // Into buffer next_, when the step that used it is over.
  void fetch() {
    used_[next_].wait_on(side_);
    copy_to_device(side_, buffers_[next_], pinned_[0].data(), kBytes);
    arrived_[next_].record(side_);
  }

  Rig rig_;
  Stream side_;
  Buffer x_;
  std::vector<char> pageable_;
  std::vector<Buffer> buffers_, pinned_;
  std::vector<Event> arrived_, used_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Program> make_pageable_copies(Remedy remedy, Device device) {
  return std::make_unique<PageableCopies>(remedy, device);
}

}  // namespace saturate::lab
