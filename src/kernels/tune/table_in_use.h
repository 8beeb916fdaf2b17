// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/device.h"

namespace saturate::kernels {

// The one table of tuned choices that calls of a kind consult, process-wide. `Table` has empty().
template <class Table>
class TableInUse {
 public:
  // An empty table ends the use. Not while another thread looks one up for a call of `device`.
  void use(Device device, Table table) {
    const std::lock_guard lock(mutex_);
    if (table.empty()) return now_.store(nullptr, std::memory_order_release);
    all_.push_back(std::make_unique<InUse>(InUse{device, std::move(table)}));
    now_.store(all_.back().get(), std::memory_order_release);
  }
  // Null when none is in use for `device`. Without a lock.
  const Table* of(Device device) const noexcept {
    const InUse* const now = now_.load(std::memory_order_acquire);
    return now != nullptr && now->device == device ? &now->table : nullptr;
  }

 private:
  struct InUse {
    Device device;
    Table table;
  };
  std::mutex mutex_;
  // Earlier tables stay: a launch on another thread may still look at one. There are a handful.
  std::vector<std::unique_ptr<InUse>> all_;
  std::atomic<const InUse*> now_{nullptr};
};

}  // namespace saturate::kernels
