// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "observe/analyse/leaf.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

constexpr uint32_t kNone = UINT32_MAX;

// What a thread was doing from start to end; where no piece lies it ran its own code.
struct HostPiece {
  int64_t start_ns, end_ns;
  uint32_t name;  // of the call or span
  Leaf leaf;
};

// Whether `call` returned only when `op`, a copy that it issued, was over or as good as: a copy of
// pageable memory ends up to its last chunk later, by the device's clock.
bool holds_call(const DeviceOp& op, const HostCall& call);

// The host's side of a sorted trace: which call issued an operation, and each thread's time cut
// into disjoint pieces. Of calls and spans that overlap on one thread the rarest kind wins: capture
// lost, tool, code loading, allocation, synchronisation, copy, no core (a launch takes long by itself
// or for want of one), launch, other call, interpreter lock, lock, file, network, loader, blocked. Cost O(n log n), 24 bytes a call and 32 a piece. The trace must outlive it.
class HostTimeline {
 public:
  explicit HostTimeline(const Trace& trace);

  // Index of the call that issued `op`, the outermost if several carry its correlation; or kNone.
  uint32_t issuer(const DeviceOp& op) const;
  std::span<const HostPiece> thread(uint32_t thread) const;
  // The first piece of the thread that ends after `time_ns`, as an index.
  size_t first_after(uint32_t thread, int64_t time_ns) const;
  // Of the thread's own code around `time_ns`, from the end of the piece before, not earlier than
  // `since_ns`, to the start of the next; INT64_MAX when one of them is not in the capture.
  int64_t own_stretch_ns(uint32_t thread, int64_t time_ns, int64_t since_ns) const;
  // The same of its piece around `time_ns`: 0 where that is its own code.
  int64_t piece_ns(uint32_t thread, int64_t time_ns, int64_t since_ns) const;

 private:
  void index_calls();
  size_t home_of(int64_t correlation, uint32_t process) const;
  void mark_blocking();
  void cut_pieces();

  const Trace& trace_;
  struct Slot {
    int64_t correlation = kNoCorrelation;
    uint32_t process = 0;
    uint32_t call = kNone;
  };
  std::vector<Slot> slots_;     // open addressing; a power of two
  std::vector<bool> blocking_;  // by call: a copy that waited for its end
  std::vector<std::vector<HostPiece>> pieces_;
};

}  // namespace saturate::observe
