// SPDX-License-Identifier: Apache-2.0
// Loops that are worth sharing even where small ones are not: see parallel_for.h.
#pragma once
#include <cstdint>
#include <functional>

namespace saturate {

/// While one lives in the life of an InOneThread, loops of parallel_for_long() called in its thread are
/// shared between the compute threads nonetheless. For a thread that alone has work.
class LongLoopsShared {
 public:
  LongLoopsShared() noexcept;
  ~LongLoopsShared();
  LongLoopsShared(const LongLoopsShared&) = delete;
  LongLoopsShared& operator=(const LongLoopsShared&) = delete;

 private:
  bool before_;
};

// parallel_for() for loops of which `grain` takes some 50 us or more, beside which waking a thread is
// little. Chunks and errors as there.
void parallel_for_long(int64_t count, int64_t grain,
                       const std::function<void(int64_t, int64_t)>& body);

// CPUs that this process may run on.
int allowed_cpus();

}  // namespace saturate
