// SPDX-License-Identifier: Apache-2.0
// Field numbers are those of perfetto's trace_packet.proto, track_event.proto,
// track_descriptor.proto and interned_data.proto.
#include "observe/report/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/protobuf.h"
#include "observe/analyse/attribute.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

struct Slice {
  int64_t start_ns, end_ns;
  uint32_t name;  // of the writer's table
};

class Writer {
 public:
  // Times are counted from the first of all records.
  void counts_from(const Trace& trace) {
    for (const auto* start : {first(trace.ops), first(trace.calls), first(trace.spans)}) {
      if (start != nullptr) origin_ns_ = std::min(origin_ns_, *start);
    }
  }
  uint32_t name(const std::string& text) { return names_.add(text); }

  // A track with tracks under it. Returns its id.
  uint64_t group(const std::string& name) { return describe(name, 0); }

  // Slices in order of start, outer ones first. Those that overlap without nesting move to further
  // tracks of the same name.
  void track(const std::string& name, uint64_t parent, const std::vector<Slice>& slices) {
    struct Lane {
      uint64_t id;
      std::vector<int64_t> open;  // ends, outermost first
    };
    std::vector<Lane> lanes;
    for (const Slice& s : slices) {
      Lane* lane = nullptr;
      for (Lane& l : lanes) {
        while (!l.open.empty() && l.open.back() <= s.start_ns) close(l.id, l.open);
        if (lane == nullptr && (l.open.empty() || l.open.back() >= s.end_ns)) lane = &l;
      }
      if (lane == nullptr) {
        lanes.push_back({describe(name, parent), {}});
        lane = &lanes.back();
      }
      event(1, lane->id, s.start_ns, s.name);
      lane->open.push_back(s.end_ns);
    }
    for (Lane& l : lanes) {
      while (!l.open.empty()) close(l.id, l.open);
    }
  }

  std::string take() { return std::move(out_); }

 private:
  template <class Record>
  static const int64_t* first(const std::vector<Record>& records) {
    return records.empty() ? nullptr : &records.front().start_ns;
  }

  uint64_t describe(const std::string& name, uint64_t parent) {
    ProtobufMessage descriptor;
    descriptor.integer(1, ++tracks_);
    descriptor.bytes(2, name);
    if (parent != 0) descriptor.integer(5, parent);
    packet_.clear();
    packet_.integer(10, 1);
    packet_.message(60, descriptor);
    send();
    return tracks_;
  }

  void close(uint64_t track, std::vector<int64_t>& open) {
    event(2, track, open.back(), 0);
    open.pop_back();
  }

  // Names are sent once and then go by number.
  void event(uint64_t type, uint64_t track, int64_t time_ns, uint32_t name) {
    event_.clear();
    event_.integer(9, type);
    event_.integer(11, track);
    if (type == 1) event_.integer(10, uint64_t{name} + 1);
    packet_.clear();
    packet_.integer(8, static_cast<uint64_t>(time_ns - origin_ns_));
    packet_.integer(10, 1);
    packet_.integer(13, sent_.empty() ? 3 : 2);  // the first says that no earlier names count
    packet_.message(11, event_);
    if (type == 1 && sent_.insert(name).second) {
      ProtobufMessage event_name, interned;
      event_name.integer(1, uint64_t{name} + 1);
      event_name.bytes(2, printable(names_[name]));
      interned.message(2, event_name);
      packet_.message(12, interned);
    }
    send();
  }

  void send() {
    ProtobufMessage m;
    m.message(1, packet_);
    out_ += m.str();
  }

  NameTable names_;
  int64_t origin_ns_ = INT64_MAX;
  uint64_t tracks_ = 0;
  std::set<uint32_t> sent_;
  ProtobufMessage packet_, event_;
  std::string out_;
};

// `prefix`: before the names of its groups.
void write_trace(Writer& writer, const Trace& trace, const std::string& prefix) {
  uint32_t leaf_names[kLeaves];
  for (size_t l = 0; l < kLeaves; ++l)
    leaf_names[l] = writer.name((is_busy(static_cast<Leaf>(l)) ? "" : "idle: ") +
                                std::string(leaf_info(static_cast<Leaf>(l)).title));
  std::vector<uint32_t> names;
  for (uint32_t i = 0; i < trace.names.size(); ++i) names.push_back(writer.name(trace.names[i]));
  const HostTimeline host(trace);
  std::map<uint32_t, std::pair<int64_t, int64_t>> devices;  // first start and last end
  std::vector<std::vector<Slice>> streams(trace.streams.size()), threads(trace.threads.size());
  for (const DeviceOp& op : trace.ops) {
    const auto [at, fresh] =
        devices.try_emplace(trace.streams[op.stream].device, op.start_ns, op.end_ns);
    at->second.second = std::max(at->second.second, op.end_ns);
    streams[op.stream].push_back({op.start_ns, op.end_ns, names[op.name]});
  }
  for (const HostCall& c : trace.calls)
    threads[c.thread].push_back({c.start_ns, c.end_ns, names[c.name]});
  for (const HostSpan& s : trace.spans)
    threads[s.thread].push_back({s.start_ns, s.end_ns, names[s.name]});

  for (const auto& [device, extent] : devices) {
    const uint64_t group = writer.group(fmt::format("{}GPU {}", prefix, device));
    std::vector<Slice> leaves;
    attribute(trace, host, device, extent.first, extent.second, [&](const Segment& s) {
      const uint32_t name = leaf_names[static_cast<size_t>(s.leaf)];
      if (!leaves.empty() && leaves.back().name == name)
        leaves.back().end_ns = s.end_ns;
      else
        leaves.push_back({s.start_ns, s.end_ns, name});
    });
    writer.track("where the time went", group, leaves);
    for (uint32_t s = 0; s < streams.size(); ++s) {
      if (trace.streams[s].device == device)
        writer.track(fmt::format("stream {}", trace.streams[s].stream), group, streams[s]);
    }
  }
  const uint64_t group = writer.group(prefix + "host");
  for (uint32_t t = 0; t < threads.size(); ++t) {
    std::stable_sort(threads[t].begin(), threads[t].end(), [](const Slice& a, const Slice& b) {
      return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
    });
    writer.track(
        fmt::format("thread {} of process {}", trace.threads[t].thread, trace.threads[t].process),
        group, threads[t]);
  }
}

}  // namespace

std::string render_perfetto(const Trace& trace) {
  Writer writer;
  writer.counts_from(trace);
  write_trace(writer, trace, "");
  return writer.take();
}

std::string render_perfetto(const std::vector<RankTrace>& ranks) {
  Writer writer;
  for (const RankTrace& rank : ranks) writer.counts_from(rank.trace);
  for (const RankTrace& rank : ranks)
    write_trace(writer, rank.trace, fmt::format("rank {}: ", rank.rank));
  return writer.take();
}

}  // namespace saturate::observe
