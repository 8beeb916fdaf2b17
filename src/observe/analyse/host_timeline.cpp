// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/host_timeline.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "observe/analyse/compile_times.h"
#include "observe/analyse/names.h"

namespace saturate::observe {
namespace {

// In the order in which they win.
constexpr std::array kOrder = {
    Leaf::lost,       Leaf::tool,          Leaf::code_load, Leaf::allocator,
    Leaf::sync,       Leaf::blocking_copy, Leaf::runnable,  Leaf::launch,
    Leaf::other_call, Leaf::gil,           Leaf::lock,      Leaf::file_write,
    Leaf::file_read,  Leaf::network,       Leaf::loader,    Leaf::blocked};

size_t rank_of(Leaf leaf) {
  return static_cast<size_t>(std::find(kOrder.begin(), kOrder.end(), leaf) - kOrder.begin());
}

Leaf leaf_of(CallClass call) {
  switch (call) {
    case CallClass::launch:
    case CallClass::copy:
      return Leaf::launch;
    case CallClass::sync:
      return Leaf::sync;
    case CallClass::allocate:
      return Leaf::allocator;
    case CallClass::load:
      return Leaf::code_load;
    case CallClass::other:
      return Leaf::other_call;
  }
  return Leaf::other_call;
}

// Empty for spans that say nothing about waiting.
std::optional<Leaf> leaf_of(const HostSpan& span, std::string_view name) {
  switch (span.kind) {
    case SpanKind::range:
      return std::nullopt;
    case SpanKind::loader:
      return Leaf::loader;
    case SpanKind::blocked:
      return Leaf::blocked;
    case SpanKind::runnable:
      return Leaf::runnable;
    case SpanKind::file_read:
      return Leaf::file_read;
    case SpanKind::file_write:
      return Leaf::file_write;
    case SpanKind::network:
      return Leaf::network;
    case SpanKind::lock:
      return Leaf::lock;
    case SpanKind::gil:
      return Leaf::gil;
    case SpanKind::lost:
      return Leaf::lost;
    case SpanKind::overhead:
      if (name.find("oading") != std::string_view::npos) return Leaf::code_load;
      // The queue of the device is full: the host is ahead, and waits for nothing it would miss.
      if (name.find("Command Buffer Full") != std::string_view::npos) return std::nullopt;
      return Leaf::tool;
  }
  return std::nullopt;
}

struct Interval {
  int64_t start_ns, end_ns;
  uint32_t name;
  uint8_t rank;
};

void push_piece(std::vector<HostPiece>& pieces, int64_t start, int64_t end, const Interval& of) {
  if (start >= end) return;
  const Leaf leaf = kOrder[of.rank];
  if (!pieces.empty() && pieces.back().end_ns == start && pieces.back().leaf == leaf &&
      pieces.back().name == of.name) {
    pieces.back().end_ns = end;
    return;
  }
  pieces.push_back({start, end, of.name, leaf});
}

// Intervals that overlap in a chain, in order of start: the best rank at each time, then the
// latest start. The set of open intervals is as deep as calls nest, so a plain array does.
void cut_cluster(std::span<const Interval> cluster, std::vector<HostPiece>& pieces) {
  if (cluster.size() == 1) {
    push_piece(pieces, cluster[0].start_ns, cluster[0].end_ns, cluster[0]);
    return;
  }
  std::vector<const Interval*> open;
  size_t next = 0;
  int64_t now = cluster[0].start_ns;
  while (next < cluster.size() || !open.empty()) {
    while (next < cluster.size() && cluster[next].start_ns <= now) open.push_back(&cluster[next++]);
    std::erase_if(open, [&](const Interval* i) { return i->end_ns <= now; });
    int64_t until = next < cluster.size() ? cluster[next].start_ns : INT64_MAX;
    const Interval* best = nullptr;
    for (const Interval* i : open) {
      until = std::min(until, i->end_ns);
      if (best == nullptr || i->rank <= best->rank) best = i;
    }
    if (best == nullptr && next == cluster.size()) return;
    if (best != nullptr) push_piece(pieces, now, until, *best);
    now = until;
  }
}

}  // namespace

bool holds_call(const DeviceOp& op, const HostCall& call) {
  if (op.kind != OpKind::copy) return false;
  if (op.end_ns <= call.end_ns) return true;
  return op.memory == HostMemory::pageable &&
         call.end_ns - op.start_ns > (op.end_ns - op.start_ns) / 2;
}

HostTimeline::HostTimeline(const Trace& trace) : trace_(trace) {
  index_calls();
  mark_blocking();
  cut_pieces();
}

// Where to search first. Correlations of a process are numbers in a row, so those of several would
// lie in runs one over the other, to be walked through to the end. In blocks of 16 a run is broken
// up and neighbours still share lines of the cache.
size_t HostTimeline::home_of(int64_t correlation, uint32_t process) const {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const auto number = static_cast<uint64_t>(correlation);
  const uint64_t block = (number / 16 + process * kGolden) * kGolden >> 20;
  return static_cast<size_t>(block * 16 + number % 16) & (slots_.size() - 1);
}

void HostTimeline::index_calls() {
  slots_.resize(std::bit_ceil(std::max<size_t>(16, trace_.calls.size() * 2)));
  const size_t mask = slots_.size() - 1;
  for (uint32_t i = 0; i < trace_.calls.size(); ++i) {
    const HostCall& call = trace_.calls[i];
    if (call.correlation == kNoCorrelation) continue;
    const uint32_t process = trace_.threads[call.thread].process;
    size_t at = home_of(call.correlation, process);
    while (slots_[at].call != kNone &&
           (slots_[at].correlation != call.correlation || slots_[at].process != process))
      at = (at + 1) & mask;
    if (slots_[at].call == kNone) slots_[at] = {call.correlation, process, i};
  }
}

uint32_t HostTimeline::issuer(const DeviceOp& op) const {
  if (op.correlation == kNoCorrelation) return kNone;
  const uint32_t process = trace_.streams[op.stream].process;
  const size_t mask = slots_.size() - 1;
  size_t at = home_of(op.correlation, process);
  while (slots_[at].call != kNone) {
    if (slots_[at].correlation == op.correlation && slots_[at].process == process)
      return slots_[at].call;
    at = (at + 1) & mask;
  }
  return kNone;
}

// "Asynchronous" copies of pageable memory wait too: detected by holds_call.
void HostTimeline::mark_blocking() {
  blocking_.resize(trace_.calls.size());
  for (const DeviceOp& op : trace_.ops) {
    if (op.kind != OpKind::copy) continue;
    const uint32_t call = issuer(op);
    if (call != kNone && holds_call(op, trace_.calls[call])) blocking_[call] = true;
  }
}

void HostTimeline::cut_pieces() {
  std::vector<uint8_t> rank_of_name(trace_.names.size(), UINT8_MAX);  // of calls
  std::vector<std::vector<Interval>> intervals(trace_.threads.size());
  for (size_t i = 0; i < trace_.calls.size(); ++i) {
    const HostCall& call = trace_.calls[i];
    uint8_t& rank = rank_of_name[call.name];
    if (rank == UINT8_MAX) {
      const std::string& name = trace_.names[call.name];
      rank = static_cast<uint8_t>(
          rank_of(is_blocking_copy(name) ? Leaf::blocking_copy : leaf_of(classify_call(name))));
    }
    const auto used = blocking_[i] ? static_cast<uint8_t>(rank_of(Leaf::blocking_copy)) : rank;
    intervals[call.thread].push_back({call.start_ns, call.end_ns, call.name, used});
  }
  std::vector<bool> with_spans(trace_.threads.size());
  // Who makes code, in threads or processes of its own too, waits for the code and for nothing else.
  const CompileTimes compiling(trace_);
  for (const HostSpan& span : trace_.spans) {
    auto leaf = leaf_of(span, trace_.names[span.name]);
    if (!leaf) continue;
    if ((span.kind == SpanKind::loader || (is_host_wait(*leaf) && *leaf != Leaf::gil)) &&
        compiling.at(trace_.threads[span.thread].process, span.start_ns, span.end_ns))
      leaf = Leaf::code_load;
    intervals[span.thread].push_back(
        {span.start_ns, span.end_ns, span.name, static_cast<uint8_t>(rank_of(*leaf))});
    with_spans[span.thread] = true;
  }
  pieces_.resize(trace_.threads.size());
  for (uint32_t t = 0; t < trace_.threads.size(); ++t) {
    std::vector<Interval>& all = intervals[t];
    if (with_spans[t])
      std::stable_sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) {
        return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
      });
    size_t from = 0;
    int64_t reach = INT64_MIN;
    for (size_t i = 0; i <= all.size(); ++i) {
      if (i < all.size() && (i == from || all[i].start_ns < reach)) {
        reach = std::max(reach, all[i].end_ns);
        continue;
      }
      if (i > from) cut_cluster(std::span(all).subspan(from, i - from), pieces_[t]);
      from = i;
      if (i < all.size()) reach = all[i].end_ns;
    }
    all = {};
  }
}

std::span<const HostPiece> HostTimeline::thread(uint32_t thread) const { return pieces_[thread]; }

int64_t HostTimeline::own_stretch_ns(uint32_t thread, int64_t time_ns, int64_t since_ns) const {
  const std::vector<HostPiece>& p = pieces_[thread];
  const size_t next = first_after(thread, time_ns);
  if (next == p.size() || next == 0) return INT64_MAX;
  return std::max<int64_t>(0, p[next].start_ns - std::max(since_ns, p[next - 1].end_ns));
}

int64_t HostTimeline::piece_ns(uint32_t thread, int64_t time_ns, int64_t since_ns) const {
  const std::vector<HostPiece>& p = pieces_[thread];
  const size_t at = first_after(thread, time_ns);
  return at < p.size() && p[at].start_ns <= time_ns
             ? p[at].end_ns - std::max(p[at].start_ns, since_ns)
             : 0;
}

size_t HostTimeline::first_after(uint32_t thread, int64_t time_ns) const {
  const std::vector<HostPiece>& p = pieces_[thread];
  return static_cast<size_t>(
      std::partition_point(p.begin(), p.end(),
                           [&](const HostPiece& piece) { return piece.end_ns <= time_ns; }) -
      p.begin());
}

}  // namespace saturate::observe
