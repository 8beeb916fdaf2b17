// SPDX-License-Identifier: Apache-2.0
// The leaves of the attribution tree: every nanosecond of a device belongs to exactly one.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace saturate::observe {

// Busy leaves in the order in which they win when work of several kinds runs at once: computation
// before communication before copies, so communication and copies count only where exposed.
enum class Leaf : uint8_t {
  tensor,
  matrix,
  memory_bound,
  other_kernel,
  graph,
  low_grid,
  tiny,
  communication,
  copy_in_pageable,
  copy_in,
  copy_out_pageable,
  copy_out,
  copy_device,
  fill,
  // Idle: by what the thread that issued the next work was doing.
  launch,
  launch_latency,
  host_code,
  loader,
  sync,
  after_sync,
  blocking_copy,
  allocator,
  code_load,
  other_call,
  blocked,
  file_read,
  file_write,
  network,
  lock,
  runnable,
  gil,
  dependency,
  tool,
  lost,
  unknown,
};
constexpr size_t kLeaves = static_cast<size_t>(Leaf::unknown) + 1;
constexpr size_t kBusyLeaves = static_cast<size_t>(Leaf::launch);

constexpr bool is_busy(Leaf leaf) { return static_cast<size_t>(leaf) < kBusyLeaves; }
// The host was kept in the kernel by something that is not the device.
constexpr bool is_host_wait(Leaf leaf) { return leaf >= Leaf::blocked && leaf <= Leaf::lock; }

struct LeafInfo {
  std::string_view id;       // of JSON and --fail-if; never changes
  std::string_view title;    // a few words
  std::string_view meaning;  // one sentence
};
const LeafInfo& leaf_info(Leaf leaf);

// Nanoseconds by leaf.
struct Budget {
  std::array<int64_t, kLeaves> ns{};

  int64_t& operator[](Leaf leaf) { return ns[static_cast<size_t>(leaf)]; }
  int64_t operator[](Leaf leaf) const { return ns[static_cast<size_t>(leaf)]; }
  int64_t busy_ns() const;
  int64_t total_ns() const;
  Budget& operator+=(const Budget& other);
  bool operator==(const Budget&) const = default;
};

}  // namespace saturate::observe
