// SPDX-License-Identifier: Apache-2.0
#include "observe/read/kineto_records.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "observe/read/operator_work.h"

namespace saturate::observe {
namespace {

// "Memcpy HtoD (Pageable -> Device)"
void read_copy_name(std::string_view name, DeviceOp* op) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("HtoD"))
    op->copy = CopyKind::host_to_device;
  else if (has("DtoH"))
    op->copy = CopyKind::device_to_host;
  else if (has("DtoD"))
    op->copy = CopyKind::device_to_device;
  else if (has("PtoP"))
    op->copy = CopyKind::peer;
  if (has("Pageable"))
    op->memory = HostMemory::pageable;
  else if (has("Pinned"))
    op->memory = HostMemory::pinned;
}

// FNV-1a: the same for every reader of parts of a trace, as numbers of a table are not.
uint64_t name_hash(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

}  // namespace

void KinetoRecords::add(const KinetoEvent& e) {
  if (!e.counts() || !e.has_start) return;
  if (e.duration_ns < 0) {
    ++trace_.malformed;
    return;
  }
  switch (e.category) {
    case KinetoCategory::kernel:
      if (!e.group.empty() || !e.collective.empty()) add_collective(e);
      return add_op(e, OpKind::kernel);
    case KinetoCategory::copy:
      return add_op(e, OpKind::copy);
    case KinetoCategory::fill:
      return add_op(e, OpKind::fill);
    case KinetoCategory::call:
      trace_.calls.push_back(
          {e.start_ns, e.start_ns + e.duration_ns, e.correlation, name(e.name), thread(e.tid)});
      return;
    case KinetoCategory::annotation:
      return add_span(e, SpanKind::range);
    case KinetoCategory::operation:
      add_work(e);
      return add_span(e, SpanKind::overhead);
    case KinetoCategory::overhead:
      return add_span(e, SpanKind::overhead);
    case KinetoCategory::memory:
      return add_memory(e);
    case KinetoCategory::none:
      return;
  }
}

KinetoRecords::Mark KinetoRecords::mark() const {
  return {trace_.ops.size(),  trace_.calls.size(),       trace_.spans.size(), trace_.memory.size(),
          trace_.work.size(), trace_.collectives.size(), trace_.malformed};
}

void KinetoRecords::roll_back(const Mark& mark) {
  trace_.ops.resize(mark.ops);
  trace_.calls.resize(mark.calls);
  trace_.spans.resize(mark.spans);
  trace_.memory.resize(mark.memory);
  trace_.work.resize(mark.work);
  trace_.collectives.resize(mark.collectives);
  trace_.malformed = mark.malformed;
}

void KinetoRecords::add_op(const KinetoEvent& e, OpKind kind) {
  const int64_t device = e.device >= 0 ? e.device : e.pid;
  if (device < 0 || device >= 1024) {
    ++trace_.malformed;
    return;
  }
  DeviceOp op;
  op.start_ns = e.start_ns;
  op.end_ns = e.start_ns + e.duration_ns;
  op.correlation = e.correlation;
  op.size = kind == OpKind::kernel ? e.blocks : e.bytes;
  op.name = name(e.name);
  op.stream = stream({0, static_cast<uint32_t>(device), static_cast<uint32_t>(e.context),
                      static_cast<uint64_t>(e.stream)});
  op.block_threads = static_cast<uint32_t>(e.block_threads);
  op.kind = kind;
  op.operation = e.external_id;
  if (kind == OpKind::copy) read_copy_name(e.name, &op);
  trace_.ops.push_back(op);
}

void KinetoRecords::add_span(const KinetoEvent& e, SpanKind kind) {
  const bool loader = e.name.starts_with("enumerate(DataLoader)");
  if (e.category == KinetoCategory::operation && !loader) return;
  trace_.spans.push_back({e.start_ns, e.start_ns + e.duration_ns, name(e.name), thread(e.tid),
                          loader ? SpanKind::loader : kind});
}

void KinetoRecords::add_work(const KinetoEvent& e) {
  if (e.dims.empty()) return;
  trace_.shapes = true;
  if (e.external_id < 0 || !has_operator_work(e.name)) return;
  if (std::optional<OperatorWork> w = operator_work(e.name, e.dims, e.types, e.values)) {
    w->operation = e.external_id;
    trace_.work.push_back(*w);
  }
}

void KinetoRecords::add_collective(const KinetoEvent& e) {
  const auto plain = [](std::string_view json) {
    return json.size() >= 2 && json.front() == '"' ? json.substr(1, json.size() - 2) : json;
  };
  // The number of a group counts the groups that its own process knows; with its members it names
  // the same group everywhere. The list of many members is cut short ("[0, 1, ...]"), which is as
  // good: communicators of the same first members have different names.
  const std::string group = std::string(plain(e.group)) + " " + std::string(plain(e.group_ranks));
  const std::string_view element = plain(e.element);
  const auto has = [&](std::string_view part) { return element.find(part) != element.npos; };
  const int64_t bytes = has("Float8") || has("Byte") || has("Char") || has("Bool") ? 1
                        : has("Half") || has("BFloat16") || has("Short")           ? 2
                        : has("Double") || has("Long")                             ? 8
                                                                                   : 4;
  trace_.collectives.push_back({e.correlation, trace_.names.add(group),
                                trace_.names.add(plain(e.collective)),
                                std::max(saturating_product(e.elements_in, bytes),
                                         saturating_product(e.elements_out, bytes))});
}

void KinetoRecords::add_memory(const KinetoEvent& e) {
  constexpr int64_t kCuda = 1;  // of c10::DeviceType
  if (e.name != "[memory]" || e.device_type != kCuda || e.allocated < 0) return;
  if (e.device_id < 0 || e.device_id >= 1024) {
    ++trace_.malformed;
    return;
  }
  trace_.memory.push_back({e.start_ns, e.allocated, std::max<int64_t>(0, e.reserved),
                           static_cast<uint32_t>(e.device_id)});
}

uint32_t KinetoRecords::name(std::string_view text) {
  uint64_t first = 0, last = 0;
  const size_t n = std::min<size_t>(8, text.size());
  if (n > 0) {
    std::memcpy(&first, text.data(), n);
    std::memcpy(&last, text.data() + text.size() - n, n);
  }
  const uint64_t mixed = (first ^ last * 0x9E3779B97F4A7C15u ^ text.size()) * 0xC2B2AE3D27D4EB4Fu;
  uint32_t& recent = recent_[mixed >> 52];
  if (trace_.names[recent] != text) recent = trace_.names.add(text);
  return recent;
}

uint32_t KinetoRecords::stream(const StreamKey& key) {
  if (last_stream_id_ == UINT32_MAX || key != last_stream_) {
    last_stream_ = key;
    last_stream_id_ = trace_.streams.add(key);
  }
  return last_stream_id_;
}

uint32_t KinetoRecords::thread(std::string_view text) {
  if (last_thread_id_ != UINT32_MAX && text == last_tid_) return last_thread_id_;
  uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size())
    n = name_hash(text) | (uint64_t{1} << 63);  // a name, not a number
  last_tid_ = text;
  last_thread_id_ = trace_.threads.add({0, n});
  return last_thread_id_;
}

}  // namespace saturate::observe
