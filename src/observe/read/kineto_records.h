// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <string_view>

#include "observe/read/kineto_event.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Events of a Kineto trace as records of a Trace. One thread.
class KinetoRecords {
 public:
  void add(const KinetoEvent& event);
  // How many records there are, and back to as many: names that came with later ones stay.
  struct Mark {
    size_t ops = 0, calls = 0, spans = 0, memory = 0, work = 0, collectives = 0;
    int64_t malformed = 0;
  };
  Mark mark() const;
  void roll_back(const Mark& mark);
  Trace& trace() { return trace_; }

 private:
  void add_op(const KinetoEvent& event, OpKind kind);
  void add_span(const KinetoEvent& event, SpanKind kind);
  void add_work(const KinetoEvent& event);
  void add_collective(const KinetoEvent& event);
  void add_memory(const KinetoEvent& event);
  uint32_t name(std::string_view text);
  uint32_t stream(const StreamKey& key);
  uint32_t thread(std::string_view text);

  Trace trace_;
  // What came last, for names by a few of their bytes: most events are like one shortly before.
  std::array<uint32_t, 4096> recent_{};
  StreamKey last_stream_;
  std::string last_tid_;
  uint32_t last_stream_id_ = UINT32_MAX, last_thread_id_ = UINT32_MAX;
};

}  // namespace saturate::observe
