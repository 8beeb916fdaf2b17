// SPDX-License-Identifier: Apache-2.0
// CPU threads of kernels: one pool per process.
#pragma once
#include <cstdint>
#include <functional>

namespace saturate {

// Threads used by parallel_for, the caller included. Default: the CPUs this process may run on,
// or SATURATE_THREADS. Errors: invalid_argument when that is no number from 1 to kMostCpuThreads.
int cpu_threads();
constexpr int kMostCpuThreads = 256;
void set_cpu_threads(int threads);  // call before work starts; 1 to kMostCpuThreads, else clamped

// Calls body(begin, end) on disjoint chunks that cover [0, count), each at least `grain` long;
// returns when all are done. Chunk borders depend on count, grain and the number of threads only,
// and nested calls run in the calling thread. An exception of a chunk is thrown again here.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

/// While one lives, parallel_for() called in its thread runs in that thread alone: for threads that
/// have whole tasks of their own, where to share each small loop would cost more than it gives.
class InOneThread {
 public:
  InOneThread() noexcept;
  ~InOneThread();
  InOneThread(const InOneThread&) = delete;
  InOneThread& operator=(const InOneThread&) = delete;

 private:
  bool before_;
};

// Threads that a parallel_for() called here would share its work between: cpu_threads(), or 1 inside
// another one and in the life of an InOneThread.
int threads_here();

}  // namespace saturate
