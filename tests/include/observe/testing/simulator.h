// SPDX-License-Identifier: Apache-2.0
// A program on a simple machine, and the trace that a profiler without cost would record of it: one
// host thread, in-order streams, a launch latency. Tests plant a cause and know the answer; they
// also run the repaired program and so know what a fix brings.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
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
  int64_t pageable_lead_ns = -6'000;  // from the return of a pageable copy's call to the copy's end
  int64_t multiprocessors = 132;
  int64_t queue_depth = INT64_MAX;  // launches that a stream holds; the next one waits
};

class Simulator {
 public:
  explicit Simulator(Machine machine = {});

  void host(int64_t ns) { now_ns_ += ns; }
  void kernel(std::string_view name, int64_t ns, uint32_t stream = 7, int64_t blocks = 1024);
  // A whole graph, as "graph NUMBER".
  void graph(int64_t number, int64_t ns, uint32_t stream = 7);
  // Pageable copies hold the host until they are done.
  void copy_in(int64_t bytes, int64_t ns, bool pageable, uint32_t stream = 7);
  void copy_out(int64_t bytes, int64_t ns, bool pageable, uint32_t stream = 7);
  void synchronize();                            // cudaDeviceSynchronize
  void call(std::string_view name, int64_t ns);  // any other call that takes its time
  void wait(SpanKind kind, std::string_view name, int64_t ns);  // the host waits for something
  // A range by that name from `start_ns` to now.
  void range(const std::string& name, int64_t start_ns) {
    trace_.spans.push_back({start_ns, now_ns_, trace_.names.add(name), thread_, SpanKind::range});
  }
  void begin_step(int64_t number);  // ProfilerStep#number until the next one
  // `stream` waits for what is queued on `other` so far.
  void depend(uint32_t stream, uint32_t other);
  // What `stream` does next finds room on the device beside what `other` does now once that is done
  // by this part.
  void find_room(uint32_t stream, uint32_t other, double part);
  void end_step();

  int64_t start_ns() const { return kStartNs; }
  int64_t now_ns() const { return now_ns_; }
  // When both host and device are done.
  int64_t done_ns() const;
  // Sorted.
  Trace take();

 private:
  struct StreamState {
    int64_t free_ns = 0, wait_ns = 0, last_ns = 0;
    std::deque<int64_t> ends;  // of the latest launches
  };
  int64_t enqueue(DeviceOp op, std::string_view name, int64_t ns, uint32_t stream);
  // Until the stream's queue has room for one more.
  int64_t launch_call_ns(uint32_t stream);

  Machine machine_;
  Trace trace_;
  std::map<uint32_t, StreamState> streams_;
  static constexpr int64_t kStartNs = 1'000'000;
  int64_t now_ns_ = kStartNs, correlation_ = 0, step_start_ns_ = -1, step_ = 0;
  uint32_t thread_ = 0;
};

inline Simulator::Simulator(Machine machine) : machine_(machine) {
  trace_.source = "simulation";
  trace_.devices[0] = {"simulated", machine.multiprocessors};
  thread_ = trace_.threads.add({0, 100});
}

inline int64_t Simulator::enqueue(DeviceOp op, std::string_view name, int64_t ns, uint32_t stream) {
  StreamState& s = streams_[stream];
  const int64_t issued = now_ns_ + machine_.launch_call_ns;
  op.start_ns = std::max({issued + machine_.launch_latency_ns, s.free_ns + machine_.kernel_gap_ns,
                          s.wait_ns + machine_.kernel_gap_ns});
  op.end_ns = op.start_ns + ns;
  op.correlation = ++correlation_;
  op.name = trace_.names.add(name);
  op.stream = trace_.streams.add({0, 0, 1, stream});
  s.free_ns = op.end_ns;
  s.last_ns = ns;
  trace_.ops.push_back(op);
  return op.end_ns;
}

inline void Simulator::kernel(std::string_view name, int64_t ns, uint32_t stream, int64_t blocks) {
  DeviceOp op;
  op.kind = OpKind::kernel;
  op.size = blocks;
  op.block_threads = 256;
  const int64_t call_ns = launch_call_ns(stream);
  now_ns_ += call_ns - machine_.launch_call_ns;
  streams_[stream].ends.push_back(enqueue(op, name, ns, stream));
  now_ns_ -= call_ns - machine_.launch_call_ns;
  call("cudaLaunchKernel", call_ns);
}

inline void Simulator::graph(int64_t number, int64_t ns, uint32_t stream) {
  DeviceOp op;
  op.kind = OpKind::graph;
  enqueue(op, "graph " + std::to_string(number), ns, stream);
  call("cudaGraphLaunch", machine_.launch_call_ns);
}

inline int64_t Simulator::launch_call_ns(uint32_t stream) {
  std::deque<int64_t>& ends = streams_[stream].ends;
  if (static_cast<int64_t>(ends.size()) < machine_.queue_depth) return machine_.launch_call_ns;
  const int64_t room_ns = ends.front();
  ends.pop_front();
  return std::max(machine_.launch_call_ns, room_ns - now_ns_);
}

inline void Simulator::copy_in(int64_t bytes, int64_t ns, bool pageable, uint32_t stream) {
  DeviceOp op;
  op.kind = OpKind::copy;
  op.copy = CopyKind::host_to_device;
  op.memory = pageable ? HostMemory::pageable : HostMemory::pinned;
  op.size = bytes;
  const int64_t end =
      enqueue(op, pageable ? "Memcpy HtoD (Pageable -> Device)" : "Memcpy HtoD (Pinned -> Device)",
              ns, stream);
  call("cudaMemcpyAsync",
       pageable ? end - machine_.pageable_lead_ns - now_ns_ : machine_.launch_call_ns);
}

inline void Simulator::copy_out(int64_t bytes, int64_t ns, bool pageable, uint32_t stream) {
  DeviceOp op;
  op.kind = OpKind::copy;
  op.copy = CopyKind::device_to_host;
  op.memory = pageable ? HostMemory::pageable : HostMemory::pinned;
  op.size = bytes;
  const int64_t end =
      enqueue(op, pageable ? "Memcpy DtoH (Device -> Pageable)" : "Memcpy DtoH (Device -> Pinned)",
              ns, stream);
  call("cudaMemcpyAsync",
       pageable ? end - machine_.pageable_lead_ns - now_ns_ : machine_.launch_call_ns);
}

inline void Simulator::synchronize() {
  ++correlation_;
  int64_t end = now_ns_ + 2'000;
  for (const auto& [id, s] : streams_) end = std::max(end, s.free_ns + machine_.sync_return_ns);
  call("cudaDeviceSynchronize", end - now_ns_);
}

inline void Simulator::call(std::string_view name, int64_t ns) {
  const bool issues = name.find("Launch") != std::string_view::npos ||
                      name.find("Memcpy") != std::string_view::npos;
  trace_.calls.push_back({now_ns_, now_ns_ + ns, issues ? correlation_ : ++correlation_,
                          trace_.names.add(name), thread_});
  now_ns_ += ns;
}

inline void Simulator::wait(SpanKind kind, std::string_view name, int64_t ns) {
  trace_.spans.push_back({now_ns_, now_ns_ + ns, trace_.names.add(name), thread_, kind});
  now_ns_ += ns;
}

inline void Simulator::begin_step(int64_t number) {
  end_step();
  step_start_ns_ = now_ns_;
  step_ = number;
}

inline void Simulator::end_step() {
  if (step_start_ns_ >= 0)
    trace_.spans.push_back({step_start_ns_, now_ns_,
                            trace_.names.add("ProfilerStep#" + std::to_string(step_)), thread_,
                            SpanKind::range});
  step_start_ns_ = -1;
}

inline void Simulator::find_room(uint32_t stream, uint32_t other, double part) {
  const StreamState& o = streams_[other];
  const auto left = static_cast<int64_t>((1 - part) * static_cast<double>(o.last_ns));
  streams_[stream].wait_ns =
      std::max(streams_[stream].wait_ns, o.free_ns - left - machine_.kernel_gap_ns);
}

inline void Simulator::depend(uint32_t stream, uint32_t other) {
  streams_[stream].wait_ns = std::max(streams_[stream].wait_ns, streams_[other].free_ns);
}

inline int64_t Simulator::done_ns() const {
  int64_t done = now_ns_;
  for (const auto& [id, s] : streams_) done = std::max(done, s.free_ns);
  return done;
}

inline Trace Simulator::take() {
  end_step();
  trace_.sort();
  return std::move(trace_);
}

}  // namespace saturate::observe::testing
