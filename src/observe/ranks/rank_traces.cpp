// SPDX-License-Identifier: Apache-2.0
#include "observe/ranks/rank_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "observe/analyse/names.h"
#include "observe/read/merge.h"
#include "observe/read/open_capture.h"

namespace saturate::observe {
namespace {

namespace fs = std::filesystem;

Trace read_whole(Capture& capture) {
  while (capture.read_window()) {
  }
  return std::move(capture.trace());
}

bool is_capture(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.starts_with(".")) return false;
  for (const char* end : {".sat", ".json", ".json.gz", ".sqlite"})
    if (name.ends_with(end) && name != "counters.json") return true;
  return false;
}

// In order, of the folder and the folders in it.
std::vector<std::string> captures_in(const std::string& folder) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && is_capture(entry.path())) found.insert(entry.path().string());
    if (!entry.is_directory()) continue;
    for (const auto& inner : fs::directory_iterator(entry.path()))
      if (inner.is_regular_file() && is_capture(inner.path())) found.insert(inner.path().string());
  }
  if (found.empty())
    throw Error(Errc::invalid_argument, "doctor",
                folder +
                    ": holds no capture (*.sat, *.json, *.json.gz, *.sqlite); give the folder that "
                    "--keep kept, or that the ranks' traces were exported to");
  return {found.begin(), found.end()};
}

// The number behind the last "rank" or "worker" of the file's name, as profilers' handlers name
// files.
std::optional<int64_t> rank_in_name(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  for (const std::string word : {"rank", "worker"}) {
    const size_t at = name.rfind(word);
    if (at == std::string::npos) continue;
    size_t from = at + word.size();
    if (from < name.size() && (name[from] == '-' || name[from] == '_' || name[from] == '.')) ++from;
    int64_t rank = 0;
    if (std::from_chars(name.data() + from, name.data() + name.size(), rank).ec == std::errc{} &&
        rank >= 0)
      return rank;
  }
  return std::nullopt;
}

// Whether `process` or one that it started, such as a loader's worker, is `other`.
bool is_or_started(const Trace& from, uint32_t process, uint32_t other) {
  for (int depth = 0; depth < 64 && other != process; ++depth) {
    const auto parent = from.parents.find(other);
    if (parent == from.parents.end()) return false;
    other = parent->second;
  }
  return other == process;
}

// Records of `process` alone, and samples of those that it started. Memory stays where no other process used the device: where several
// did the samples are their sum.
Trace only(const Trace& from, uint32_t process) {
  Trace t;
  t.names = from.names;
  t.source = from.source;
  t.framework = from.framework;
  t.notes = from.notes;
  t.work = from.work;
  t.host_uses = from.host_uses;
  t.shapes = from.shapes;
  t.copy_rates = from.copy_rates;
  t.slowdown = from.slowdown;
  t.memory_by_calls = from.memory_by_calls;
  t.collectives = from.collectives;
  std::set<uint32_t> used, shared;
  std::vector<uint32_t> stream(from.streams.size()), thread(from.threads.size());
  for (uint32_t i = 0; i < from.streams.size(); ++i) {
    const StreamKey& key = from.streams[i];
    (key.process == process ? used : shared).insert(key.device);
    if (key.process == process) stream[i] = t.streams.add(key);
  }
  std::vector<bool> sampled(from.threads.size());
  for (uint32_t i = 0; i < from.threads.size(); ++i) {
    sampled[i] = is_or_started(from, process, from.threads[i].process);
    if (sampled[i]) thread[i] = t.threads.add(from.threads[i]);
  }
  t.stacks = from.stacks;
  t.parents = from.parents;
  for (HostSample s : from.samples) {
    if (!sampled[s.thread]) continue;
    if (!sampled[s.holder]) s.holder_stack = kNoStack;
    s.thread = thread[s.thread];
    s.holder = thread[s.holder];
    t.samples.push_back(s);
  }
  for (DeviceOp op : from.ops) {
    if (from.streams[op.stream].process != process) continue;
    op.stream = stream[op.stream];
    t.ops.push_back(op);
  }
  for (HostCall call : from.calls) {
    if (from.threads[call.thread].process != process) continue;
    call.thread = thread[call.thread];
    t.calls.push_back(call);
  }
  for (HostSpan span : from.spans) {
    if (from.threads[span.thread].process != process) continue;
    span.thread = thread[span.thread];
    t.spans.push_back(span);
  }
  for (const uint32_t device : used) {
    if (const auto at = from.devices.find(device); at != from.devices.end()) t.devices.insert(*at);
    for (const MemorySample& m : from.memory)
      if (m.device == device && !shared.contains(device)) t.memory.push_back(m);
  }
  return t;
}

// One process, with the number of the rank's place, so that traces can be joined again.
void renumber(Trace& trace, uint32_t process) {
  // Those that it started stay apart from all ranks.
  const uint32_t own = trace.streams.size() > 0 ? trace.streams[0].process : process;
  const auto number = [&](uint32_t old) { return old == own ? process : (1u << 31) | old; };
  std::map<uint32_t, uint32_t> parents;
  for (const auto& [child, parent] : trace.parents) parents[number(child)] = number(parent);
  trace.parents = std::move(parents);
  KeyTable<StreamKey> streams;
  KeyTable<ThreadKey> threads;
  for (uint32_t i = 0; i < trace.streams.size(); ++i) {
    StreamKey key = trace.streams[i];
    key.process = process;
    streams.add(key);
  }
  for (uint32_t i = 0; i < trace.threads.size(); ++i) {
    ThreadKey key = trace.threads[i];
    key.process = number(key.process);
    threads.add(key);
  }
  trace.streams = std::move(streams);
  trace.threads = std::move(threads);
}

struct Part {
  RankTrace rank;
  bool known = false;  // its number
};

// Each process of `trace` that used a device; of those of one rank, which it started, the one that used
// it most.
std::vector<Part> parts_of(const Trace& trace, const std::string& name, bool one_file) {
  std::map<uint32_t, int64_t> used;
  for (const DeviceOp& op : trace.ops) ++used[trace.streams[op.stream].process];
  std::map<std::pair<uint32_t, int64_t>, uint32_t> of_rank;  // by host
  for (const auto& [process, count] : std::map<uint32_t, int64_t>(used)) {
    const auto at = trace.rank_of.find(process);
    if (at == trace.rank_of.end()) continue;
    const auto [before, fresh] = of_rank.try_emplace({process >> kHostShift, at->second}, process);
    if (fresh) continue;
    const bool more = count > used[before->second];
    used.erase(more ? before->second : process);
    if (more) before->second = process;
  }
  std::vector<Part> parts;
  for (const auto& [process, count] : used) {
    Part p;
    const auto at = trace.rank_of.find(process);
    p.known = at != trace.rank_of.end();
    if (p.known) p.rank.rank = at->second;
    if (one_file && used.size() == 1 && !p.known) {
      const std::optional<int64_t> number = rank_in_name(name);
      p.known = number.has_value();
      p.rank.rank = number.value_or(0);
    }
    p.rank.clock = process >> kHostShift;
    p.rank.name = used.size() == 1
                      ? name
                      : fmt::format("{}: process {}", name, process & ((1u << kHostShift) - 1));
    p.rank.trace = only(trace, process);
    parts.push_back(std::move(p));
  }
  return parts;
}

std::vector<RankTrace> numbered(std::vector<Part> parts) {
  std::set<int64_t> taken;
  for (const Part& p : parts) {
    if (p.known && !taken.insert(p.rank.rank).second)
      throw Error(Errc::invalid_argument, "doctor",
                  fmt::format("{}: is a second capture of rank {}; give those of one run, one for "
                              "each rank",
                              p.rank.name, p.rank.rank));
  }
  int64_t next = 0;
  std::vector<RankTrace> ranks;
  for (Part& p : parts) {
    if (!p.known) {
      while (taken.contains(next)) ++next;
      p.rank.rank = next++;
    }
    ranks.push_back(std::move(p.rank));
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  for (uint32_t i = 0; i < ranks.size(); ++i) renumber(ranks[i].trace, i);
  return ranks;
}

// By kernels; a rank's graphs may hold them.
bool communicates(const Trace& trace, bool is_rank) {
  std::vector<int8_t> known(trace.names.size(), -1);
  return std::any_of(trace.ops.begin(), trace.ops.end(), [&](const DeviceOp& op) {
    if (op.kind != OpKind::kernel) return op.kind == OpKind::graph && is_rank;
    int8_t& k = known[op.name];
    if (k < 0) k = classify_kernel(trace.names[op.name]) == KernelClass::communication;
    return k == 1;
  });
}

}  // namespace

std::vector<RankTrace> split_ranks(const Trace& trace, const std::string& name) {
  std::set<uint32_t> processes;
  for (const DeviceOp& op : trace.ops) processes.insert(trace.streams[op.stream].process);
  if (processes.size() < 2) return {};
  std::vector<Part> parts = parts_of(trace, name, false);
  // Others of the tree, such as a second program that the command runs, are no ranks.
  std::erase_if(parts, [](const Part& p) { return !communicates(p.rank.trace, p.known); });
  if (parts.size() < 2) return {};
  return numbered(std::move(parts));
}

std::vector<RankTrace> open_ranks(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code none;
    if (!fs::is_directory(path, none)) {
      files.push_back(path);
      continue;
    }
    const std::vector<std::string> in = captures_in(path);
    files.insert(files.end(), in.begin(), in.end());
  }
  std::set<std::string> own;
  std::vector<Part> parts;
  uint32_t clock = 0;
  for (const std::string& file : files)
    if (file.ends_with(".sat")) own.insert(file);
  if (!own.empty()) {
    for (const std::string& file : std::set<std::string>(own)) {  // with what the launcher saw
      const fs::path host = fs::path(file).replace_filename("host.sat");
      if (std::error_code none; fs::exists(host, none)) own.insert(host.string());
    }
    const Trace all = read_whole(*open_captures(own));
    parts = parts_of(all, fs::path(*own.begin()).parent_path().string(), false);
    for (const Part& p : parts) clock = std::max(clock, p.rank.clock + 1);
  }
  for (const std::string& file : files) {
    if (own.contains(file)) continue;
    const Trace trace = read_whole(*open_capture(file));
    for (Part& p : parts_of(trace, file, true)) {
      p.rank.clock = clock;
      parts.push_back(std::move(p));
    }
    ++clock;
  }
  if (parts.size() < 2)
    throw Error(Errc::invalid_argument, "doctor",
                fmt::format("{}: {} found that used a device, and ranks are compared with each "
                            "other; give the captures of at least two",
                            paths.front(), parts.empty() ? "no rank was" : "one rank was"));
  return numbered(std::move(parts));
}

}  // namespace saturate::observe
