// SPDX-License-Identifier: Apache-2.0
// Streams, events and captured graphs. On the CPU work runs at the call, so all of these do
// nothing.
#pragma once
#include <functional>
#include <utility>

#include "runtime/device.h"

namespace saturate {

// Owns a cudaStream_t (non-blocking with respect to the default stream); null on the CPU.
class Stream {
 public:
  explicit Stream(Device device);
  ~Stream();
  Stream(Stream&& o) noexcept : device_(o.device_), native_(std::exchange(o.native_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  void* native() const noexcept { return native_; }  // a cudaStream_t
  Device device() const noexcept { return device_; }
  void synchronize() const;

 private:
  Device device_;
  void* native_ = nullptr;
};

// Owns a cudaEvent_t. `Timing::on` events can be subtracted.
class Event {
 public:
  enum class Timing { off, on };
  explicit Event(Device device, Timing timing = Timing::off);
  ~Event();
  Event(Event&& o) noexcept : device_(o.device_), native_(std::exchange(o.native_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  void record(const Stream& stream);
  void wait_on(const Stream& stream) const;  // later work of `stream` waits for this event
  void synchronize() const;                  // the host waits
  bool done() const;
  static double elapsed_ms(const Event& begin, const Event& end);

 private:
  Device device_;
  void* native_ = nullptr;
};

// A captured and instantiated CUDA graph; move only.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& o) noexcept : exec_(std::exchange(o.exec_, nullptr)), nodes_(o.nodes_) {}
  Graph& operator=(Graph&& o) noexcept {
    std::swap(exec_, o.exec_);
    std::swap(nodes_, o.nodes_);
    return *this;
  }
  // Captures what `body` enqueues on `stream` (and on streams it forks and joins by events),
  // without running it. Errors: device.
  static Graph capture(const Stream& stream, const std::function<void()>& body);
  void launch(const Stream& stream) const;
  explicit operator bool() const noexcept { return exec_ != nullptr; }
  size_t nodes() const noexcept { return nodes_; }

 private:
  void* exec_ = nullptr;
  size_t nodes_ = 0;
};

}  // namespace saturate
