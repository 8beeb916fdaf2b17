// SPDX-License-Identifier: Apache-2.0
#include "observe/read/merge.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "observe/read/input.h"
#include "observe/read/number_by_order.h"
#include "observe/read/sat_reader.h"
#include "observe/read/seams.h"
#include "observe/read/waits.h"

namespace saturate::observe {
namespace {

template <class Table, class Add>
std::vector<uint32_t> numbers(const Table& from, const Add& add) {
  std::vector<uint32_t> to(from.size());
  for (uint32_t i = 0; i < to.size(); ++i) to[i] = add(from[i]);
  return to;
}

}  // namespace

void append_trace(Trace& into, const Trace& from) {
  const auto name = numbers(from.names, [&](const auto& n) { return into.names.add(n); });
  const auto stream = numbers(from.streams, [&](const auto& s) { return into.streams.add(s); });
  const auto thread = numbers(from.threads, [&](const auto& t) { return into.threads.add(t); });
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
  into.memory.insert(into.memory.end(), from.memory.begin(), from.memory.end());
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
  Trace all;
  for (const std::string& file : files) {
    const std::unique_ptr<Capture> capture =
        read_sat(open_input(file), kSatWindowRecords, SatPauses::kept);
    while (capture->read_window()) {
    }
    append_trace(all, capture->trace());
  }
  cut_pauses(all);
  all.sort();
  number_by_order(all);
  place_waits(all);
  mark_loader_waits(all);
  return make_capture(std::move(all));
}

}  // namespace saturate::observe
