// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "observe/trace/trace.h"

namespace saturate::observe {

// What threads that issue no work (loader workers, threads that prefetch) waited for while a thread
// that does waited for something not known further, such as them. A wait counts that ends within the
// other or up to 0.15 s later: what goes on for longer is not what it waited for.
class WaitsBeside {
 public:
  explicit WaitsBeside(const Trace& trace);
  // Adds the time of [from_ns, to_ns) in which a thread or several waited, by kind and name.
  // Cost: O(kinds and names x log of their spans).
  using Sums = std::map<std::pair<SpanKind, uint32_t>, int64_t>;
  void add(int64_t from_ns, int64_t to_ns, Sums& sums) const;

 private:
  struct Wait {
    int64_t end_ns, start_ns;
    auto operator<=>(const Wait&) const = default;
  };
  std::map<std::pair<SpanKind, uint32_t>, std::vector<Wait>> waits_;  // in order of end
};

}  // namespace saturate::observe
