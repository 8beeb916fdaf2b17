// SPDX-License-Identifier: Apache-2.0
#include "observe/read/merge.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "observe/read/device_waits.h"
#include "observe/read/input.h"
#include "observe/read/number_by_order.h"
#include "observe/read/sat_reader.h"
#include "observe/read/seams.h"
#include "observe/read/staged_copies.h"
#include "observe/read/waits.h"

namespace saturate::observe {
namespace {

template <class Table, class Add>
std::vector<uint32_t> numbers(const Table& from, const Add& add) {
  std::vector<uint32_t> to(from.size());
  for (uint32_t i = 0; i < to.size(); ++i) to[i] = add(from[i]);
  return to;
}

// Sums what several processes hold; each holds nothing after its last record.
std::vector<MemorySample> sum_of_memory(std::vector<std::vector<MemorySample>> processes) {
  std::erase_if(processes, [](const auto& samples) { return samples.empty(); });
  if (processes.size() == 1) return std::move(processes[0]);
  struct Change {
    MemorySample sample;
    size_t process;
  };
  std::vector<Change> changes;
  for (size_t i = 0; i < processes.size(); ++i) {
    for (const MemorySample& m : processes[i]) changes.push_back({m, i});
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return a.sample.time_ns < b.sample.time_ns;
  });
  std::map<std::pair<size_t, uint32_t>, MemorySample> held;
  std::map<uint32_t, MemorySample> sums;
  std::vector<MemorySample> out;
  for (const auto& [sample, process] : changes) {
    MemorySample &before = held[{process, sample.device}], &sum = sums[sample.device];
    sum.time_ns = sample.time_ns;
    sum.device = sample.device;
    sum.allocated += sample.allocated - before.allocated;
    sum.reserved += sample.reserved - before.reserved;
    before = sample;
    out.push_back(sum);
  }
  return out;
}

// Of the process of "4711.rank3.sat", as the recorder names it.
void note_rank(const std::string& file, Trace& trace) {
  const size_t at = file.find(".rank");
  int64_t rank = -1;
  uint32_t process = 0;
  const char *begin = file.data(), *end = begin + file.size();
  if (at == std::string::npos || std::from_chars(begin + at + 5, end, rank).ptr == begin + at + 5 ||
      std::from_chars(begin, end, process).ptr != begin + at)
    return;
  trace.rank_of[process] = rank;
}

// At the end of its last record; of every device that it had memory of.
void give_memory_back(Trace& process) {
  std::map<uint32_t, bool> devices;
  int64_t end_ns = INT64_MIN;
  for (const MemorySample& m : process.memory) {
    devices[m.device] = true;
    end_ns = std::max(end_ns, m.time_ns);
  }
  for (const DeviceOp& op : process.ops) end_ns = std::max(end_ns, op.end_ns);
  for (const HostCall& call : process.calls) end_ns = std::max(end_ns, call.end_ns);
  for (const auto& [device, has] : devices) process.memory.push_back({end_ns, 0, 0, device});
}

}  // namespace

void append_trace(Trace& into, const Trace& from, uint32_t processes) {
  const auto name = numbers(from.names, [&](const auto& n) { return into.names.add(n); });
  const auto stream = numbers(from.streams, [&](StreamKey s) {
    s.process += processes;
    return into.streams.add(s);
  });
  const auto thread = numbers(from.threads, [&](ThreadKey t) {
    t.process += processes;
    return into.threads.add(t);
  });
  std::vector<uint32_t> stack(from.stacks.size());
  const auto moved = [&](uint32_t id) { return id == kNoStack ? kNoStack : stack[id]; };
  for (uint32_t i = 0; i < stack.size(); ++i) {
    const StackNode& n = from.stacks[i];
    stack[i] =
        into.stacks.add({moved(n.caller), name[n.function], name[n.file], n.line, name[n.text]});
  }
  for (HostSample s : from.samples) {
    s.thread = thread[s.thread];
    s.holder = thread[s.holder];
    s.stack = moved(s.stack);
    s.holder_stack = moved(s.holder_stack);
    s.wait = name[s.wait];
    into.samples.push_back(s);
  }
  for (const auto& [process, parent] : from.parents)
    into.parents[process + processes] = parent + processes;
  for (const auto& [process, rank] : from.rank_of) into.rank_of[process + processes] = rank;
  into.ops.reserve(into.ops.size() + from.ops.size());
  into.calls.reserve(into.calls.size() + from.calls.size());
  for (DeviceOp op : from.ops) {
    op.name = name[op.name];
    op.stream = stream[op.stream];
    into.ops.push_back(op);
  }
  for (HostCall call : from.calls) {
    call.name = name[call.name];
    call.thread = thread[call.thread];
    into.calls.push_back(call);
  }
  for (HostSpan span : from.spans) {
    span.name = name[span.name];
    span.thread = thread[span.thread];
    into.spans.push_back(span);
  }
  for (CollectiveNote note : from.collectives) {
    note.group = name[note.group];
    note.what = name[note.what];
    into.collectives.push_back(note);
  }
  into.memory.insert(into.memory.end(), from.memory.begin(), from.memory.end());
  into.host_uses.insert(into.host_uses.end(), from.host_uses.begin(), from.host_uses.end());
  into.memory_by_calls = into.memory_by_calls || from.memory_by_calls;
  into.work.insert(into.work.end(), from.work.begin(), from.work.end());
  into.shapes = into.shapes || from.shapes;
  for (const auto& [id, info] : from.devices) into.devices.try_emplace(id, info);
  for (const std::string& note : from.notes) {
    if (std::find(into.notes.begin(), into.notes.end(), note) == into.notes.end())
      into.notes.push_back(note);
  }
  if (into.source.empty()) into.source = from.source;
  if (into.framework.empty()) into.framework = from.framework;
  into.pauses.insert(into.pauses.end(), from.pauses.begin(), from.pauses.end());
  into.copy_rates.take(from.copy_rates);
  into.slowdown = std::max(into.slowdown, from.slowdown);
  into.dropped += from.dropped;
  into.malformed += from.malformed;
}

std::unique_ptr<Capture> open_capture_folder(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".sat") files.insert(entry.path().string());
  }
  if (files.empty())
    throw Error(
        Errc::invalid_argument, "doctor",
        folder +
            ": is a directory without a capture (*.sat); give a file, or a folder kept by --keep");
  return open_captures(files);
}

std::unique_ptr<Capture> open_captures(const std::set<std::string>& files) {
  Trace all;
  std::vector<std::vector<MemorySample>> memory;
  std::map<std::string, uint32_t> folders;  // in order of first use
  for (const std::string& file : files) {
    const std::unique_ptr<Capture> capture =
        read_sat(open_input(file), kSatWindowRecords, SatPauses::kept);
    while (capture->read_window()) {
    }
    if (files.size() > 2) give_memory_back(capture->trace());  // one is the launcher's
    memory.push_back(std::move(capture->trace().memory));
    capture->trace().memory.clear();
    const std::filesystem::path path(file);
    const uint32_t folder =
        folders.try_emplace(path.parent_path().string(), folders.size()).first->second;
    note_rank(path.filename().string(), capture->trace());
    append_trace(all, capture->trace(), folder << kHostShift);
  }
  all.memory = sum_of_memory(std::move(memory));
  cut_pauses(all);
  all.sort();
  number_by_order(all);
  add_device_waits(all);
  add_staged_copies(all);
  place_waits(all);
  follow_deciders(all);
  mark_loader_waits(all);
  return make_capture(std::move(all));
}

}  // namespace saturate::observe
