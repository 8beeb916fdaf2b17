// SPDX-License-Identifier: Apache-2.0
// A program on a simple machine, and the trace that a profiler without cost would record of it: one
// host thread, in-order streams, a launch latency. Tests plant a cause and know the answer; they
// also run the repaired program and so know what a fix brings.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "observe/trace/trace.h"

namespace saturate::observe::testing {

struct Machine {
  int64_t launch_call_ns = 4'000;
  int64_t launch_latency_ns = 2'500;  // from the end of the call to the start on an idle stream
  int64_t kernel_gap_ns = 1'000;      // between neighbours of a stream that were both queued
  int64_t sync_return_ns = 6'000;     // from the end of the work to the return of the waiting call
  int64_t multiprocessors = 132;
};

class Simulator {
 public:
  explicit Simulator(Machine machine = {});

  void host(int64_t ns) { now_ns_ += ns; }
  void kernel(std::string_view name, int64_t ns, uint32_t stream = 7, int64_t blocks = 1024);
  // Pageable copies hold the host until they are done.
  void copy_in(int64_t bytes, int64_t ns, bool pageable, uint32_t stream = 7);
  void copy_out(int64_t bytes, int64_t ns, bool pageable, uint32_t stream = 7);
  void synchronize();                            // cudaDeviceSynchronize
  void call(std::string_view name, int64_t ns);  // any other call that takes its time
  void wait(SpanKind kind, std::string_view name, int64_t ns);  // the host waits for something
  void begin_step(int64_t number);  // ProfilerStep#number until the next one
  // `stream` waits for what is queued on `other` so far.
  void depend(uint32_t stream, uint32_t other);
  void end_step();

  int64_t now_ns() const { return now_ns_; }
  // When both host and device are done.
  int64_t done_ns() const;
  // Sorted.
  Trace take();

 private:
  struct StreamState {
    int64_t free_ns = 0, wait_ns = 0;
  };
  int64_t enqueue(DeviceOp op, std::string_view name, int64_t ns, uint32_t stream);

  Machine machine_;
  Trace trace_;
  std::map<uint32_t, StreamState> streams_;
  int64_t now_ns_ = 1'000'000, correlation_ = 0, step_start_ns_ = -1, step_ = 0;
  uint32_t thread_ = 0;
};

}  // namespace saturate::observe::testing
