// SPDX-License-Identifier: Apache-2.0
#include "runtime/stream.h"

#include "base/error.h"
#include "runtime/cuda_backend.h"

namespace saturate {

Stream::Stream(Device device) : device_(device) {
  if (device.is_cuda()) native_ = cuda::create_stream(device.index);
}
Stream::~Stream() {
  if (native_) cuda::destroy_stream(native_);
}
void Stream::synchronize() const {
  if (native_) cuda::synchronize_stream(native_);
}

Event::Event(Device device, Timing timing) : device_(device) {
  if (device.is_cuda()) native_ = cuda::create_event(device.index, timing == Timing::on);
}
Event::~Event() {
  if (native_) cuda::destroy_event(native_);
}
void Event::record(const Stream& stream) {
  if (native_) cuda::record_event(native_, stream.native());
}
void Event::wait_on(const Stream& stream) const {
  if (native_) cuda::wait_event(stream.native(), native_);
}
void Event::synchronize() const {
  if (native_) cuda::synchronize_event(native_);
}
bool Event::done() const { return native_ == nullptr || cuda::event_done(native_); }
double Event::elapsed_ms(const Event& begin, const Event& end) {
  return begin.native_ ? cuda::elapsed_ms(begin.native_, end.native_) : 0.0;
}

Graph::~Graph() {
  if (exec_) cuda::destroy_graph(exec_);
}
Graph Graph::capture(const Stream& stream, const std::function<void()>& body) {
  SAT_ASSERT(stream.native() != nullptr);
  Graph g;
  g.exec_ = cuda::capture_graph(stream.native(), body, &g.nodes_);
  return g;
}
void Graph::launch(const Stream& stream) const { cuda::launch_graph(exec_, stream.native()); }

}  // namespace saturate
