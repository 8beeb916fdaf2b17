// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/host_lines.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "observe/analyse/stack_words.h"

namespace saturate::observe {
namespace {

constexpr int64_t kShortestForWorkers = 200'000;  // shorter waits are not for them

// What the host is to blame for, and no other device, stream or recorder.
bool is_hosts(Leaf leaf) {
  return !is_busy(leaf) && leaf != Leaf::dependency && leaf != Leaf::launch_latency &&
         leaf != Leaf::unknown && leaf != Leaf::lost && leaf != Leaf::tool;
}

// The number of points of `s` in [from, to).
int64_t points_in(const HostSample& s, int64_t from, int64_t to) {
  if (s.count <= 1 || s.end_ns <= s.start_ns)
    return s.start_ns >= from && s.start_ns < to ? s.count : 0;
  const double step = static_cast<double>(s.end_ns - s.start_ns) / (s.count - 1);
  const auto before = [&](int64_t time) {  // points that lie before
    if (time <= s.start_ns) return int64_t{0};
    if (time > s.end_ns) return static_cast<int64_t>(s.count);
    return static_cast<int64_t>(static_cast<double>(time - 1 - s.start_ns) / step) + 1;
  };
  return before(to) - before(from);
}

// A line of the program, whatever it called there, and who kept it waiting for the lock.
struct Group {
  uint32_t file, line;
  bool lock;
  uint32_t holder_file, holder_line;
  auto operator<=>(const Group&) const = default;
};

// Samples of a line that are alike but for what native code ran there.
struct Alike {
  int64_t samples = 0;
  StackWords words, holder;
  uint32_t thread = 0, holder_thread = 0, wait = 0;
};

struct Sum {
  double ns = 0;
  int64_t samples = 0, blocked = 0;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, Alike>
      alike;  // by stack of Python, thread, wait, holder
  std::map<std::pair<std::string, std::string>, int64_t> native;  // by function and file
  std::map<Leaf, double> leaves;
};

template <class Map>
auto most_of(const Map& counts, const auto& count) {
  return std::max_element(counts.begin(), counts.end(), [&](const auto& a, const auto& b) {
    return count(a.second) < count(b.second);
  });
}

}  // namespace

std::string CodePlace::where() const { return line > 0 ? file + ":" + std::to_string(line) : file; }

void HostLineCounts::index(const Trace& trace) {
  indexed_ = trace.samples.size();
  threads_ = trace.threads.size();
  cursors_.assign(threads_, {});
  program_thread_.clear();
  workers_.clear();
  for (size_t i = 0; i < trace.samples.size(); ++i) {
    Cursor& c = cursors_[trace.samples[i].thread];
    if (c.end == 0) c.begin = c.at = i;
    c.end = i + 1;
  }
  std::vector<int64_t> calls(trace.threads.size());
  std::set<uint32_t> issuing;
  for (const HostCall& c : trace.calls) {
    ++calls[c.thread];
    issuing.insert(trace.threads[c.thread].process);
  }
  for (uint32_t t = 0; t < cursors_.size(); ++t) {
    if (cursors_[t].end == 0) continue;
    const ThreadKey& key = trace.threads[t];
    if (issuing.contains(key.process)) {
      const auto [at, fresh] = program_thread_.try_emplace(key.process, t);
      // Of those that issue as much, none of them perhaps, the oldest: the main thread.
      const uint32_t other = at->second;
      if (calls[t] > calls[other] ||
          (calls[t] == calls[other] && key.thread < trace.threads[other].thread))
        at->second = t;
      continue;
    }
    uint32_t process = key.process;
    for (int depth = 0; depth < 64; ++depth) {
      const auto parent = trace.parents.find(process);
      if (parent == trace.parents.end()) break;
      process = parent->second;
      if (!issuing.contains(process)) continue;
      workers_[process].push_back(t);
      break;
    }
  }
}

int64_t HostLineCounts::count(const Trace& trace, uint32_t thread, int64_t start_ns, int64_t end_ns,
                              Leaf leaf, std::map<Key, int64_t>& into) {
  Cursor& c = cursors_[thread];
  if (c.at > c.begin && trace.samples[c.at - 1].end_ns >= start_ns) c.at = c.begin;  // gone back
  while (c.at < c.end && trace.samples[c.at].end_ns < start_ns) ++c.at;
  int64_t all = 0;
  for (size_t i = c.at; i < c.end && trace.samples[i].start_ns < end_ns; ++i) {
    const HostSample& s = trace.samples[i];
    const int64_t points = points_in(s, start_ns, end_ns);
    if (points == 0) continue;
    into[{leaf, thread, s.stack, s.wait, s.holder, s.holder_stack, s.state}] += points;
    all += points;
  }
  return all;
}

void HostLineCounts::add(const Trace& trace, int64_t start_ns, int64_t end_ns, Leaf leaf,
                         uint32_t thread) {
  if (trace.samples.empty() || !is_hosts(leaf)) return;
  if (indexed_ != trace.samples.size() || threads_ != trace.threads.size()) index(trace);
  const uint32_t process = trace.threads[thread].process;
  if (count(trace, thread, start_ns, end_ns, leaf, points_) == 0) {
    const auto other = program_thread_.find(process);
    if (other != program_thread_.end() && other->second != thread)
      count(trace, other->second, start_ns, end_ns, leaf, points_);
  }
  if (end_ns - start_ns < kShortestForWorkers) return;
  const auto at = workers_.find(process);
  if (at == workers_.end()) return;
  for (const uint32_t worker : at->second)
    count(trace, worker, start_ns, end_ns, leaf, worker_points_);
}

HostLines HostLineCounts::finish(const Trace& trace, const Budget& idle) const {
  HostLines result;
  std::array<int64_t, kLeaves> in_leaf{};
  for (size_t l = 0; l < kLeaves; ++l)
    if (is_hosts(static_cast<Leaf>(l))) result.idle_ns += static_cast<double>(idle.ns[l]);
  for (const auto& [key, points] : points_) {
    in_leaf[static_cast<size_t>(key.leaf)] += points;
    result.samples += points;
  }
  const auto thread_name = [&](uint32_t id) {
    const ThreadKey& key = trace.threads[id];
    uint64_t oldest = key.thread;
    for (uint32_t t = 0; t < trace.threads.size(); ++t)
      if (trace.threads[t].process == key.process)
        oldest = std::min(oldest, trace.threads[t].thread);
    return key.thread == oldest ? std::string("main thread")
                                : "thread " + std::to_string(key.thread);
  };
  const auto lines_of = [&](const std::map<Key, int64_t>& counted, const auto& weight, double all) {
    std::map<Group, Sum> groups;
    for (const auto& [key, points] : counted) {
      const StackWords words = stack_words(trace, key.stack);
      StackWords holder;
      Group g{words.file, words.at.line, key.state == HostState::lock, 0, 0};
      if (key.holder_stack != kNoStack) {
        holder = stack_words(trace, key.holder_stack);
        g.holder_file = holder.file, g.holder_line = holder.at.line;
      }
      Sum& sum = groups[g];
      const double ns = weight(key, points);
      sum.ns += ns;
      sum.samples += points;
      sum.leaves[key.leaf] += ns;
      if (key.state == HostState::blocked) sum.blocked += points;
      if (words.native.known()) sum.native[{words.native.function, words.native.file}] += points;
      const uint32_t python = words.native.known() ? trace.stacks[key.stack].caller : key.stack;
      Alike& alike = sum.alike[{python, key.thread, key.wait, key.holder_stack}];
      alike.samples += points;
      alike.words = words;
      alike.holder = holder;
      alike.thread = key.thread;
      alike.holder_thread = key.holder;
      alike.wait = key.wait;
    }
    std::vector<HostLine> lines;
    for (const auto& [group, sum] : groups) {
      const Alike& most = most_of(sum.alike, [](const Alike& a) { return a.samples; })->second;
      HostLine line;
      line.at = most.words.at;
      line.innermost = most.words.innermost;
      line.caller = most.words.caller;
      line.via = most.words.via;
      line.remark = most.words.remark;
      line.thread = thread_name(most.thread);
      if (group.lock || 2 * sum.blocked > sum.samples) line.wait = trace.names[most.wait];
      if (group.lock && most.holder.at.known()) {
        line.holder = most.holder.at;
        line.holder_thread = thread_name(most.holder_thread);
      }
      if (!sum.native.empty()) {
        const auto native = most_of(sum.native, [](int64_t samples) { return samples; });
        line.native.function = native->first.first;
        line.native.file = native->first.second;
        line.native_share = static_cast<double>(native->second) / static_cast<double>(sum.samples);
      }
      line.ns = sum.ns;
      line.samples = sum.samples;
      line.share = all > 0 ? sum.ns / all : 0;
      line.leaf = most_of(sum.leaves, [](double ns) { return ns; })->first;
      lines.push_back(std::move(line));
    }
    std::stable_sort(lines.begin(), lines.end(),
                     [](const HostLine& a, const HostLine& b) { return a.ns > b.ns; });
    return lines;
  };
  // The time of a leaf is known; samples divide it among its lines.
  result.lines = lines_of(
      points_,
      [&](const Key& key, int64_t points) {
        const auto l = static_cast<size_t>(key.leaf);
        return static_cast<double>(idle.ns[l]) * static_cast<double>(points) /
               static_cast<double>(in_leaf[l]);
      },
      result.idle_ns);
  std::set<uint32_t> processes;
  for (const auto& [key, points] : worker_points_) {
    result.worker_samples += points;
    processes.insert(trace.threads[key.thread].process);
  }
  result.worker_processes = static_cast<int64_t>(processes.size());
  result.workers = lines_of(
      worker_points_, [](const Key&, int64_t points) { return static_cast<double>(points); },
      static_cast<double>(result.worker_samples));
  for (HostLine& line : result.workers) line.ns = 0;
  return result;
}

}  // namespace saturate::observe
