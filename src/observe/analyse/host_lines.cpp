// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/host_lines.h"

#include <algorithm>

#include "observe/analyse/host_timeline.h"
#include "observe/analyse/line_groups.h"
#include "observe/analyse/sample_index.h"
#include "observe/analyse/stack_kinds.h"
#include "observe/analyse/stack_words.h"

namespace saturate::observe {
namespace {

constexpr int64_t kShortestForWorkers = 200'000;  // shorter waits are not for them
constexpr int64_t kLong = 1'000'000;              // longer than a host takes from launch to launch
constexpr double kSomeWaits = 0.05;  // of the samples of waits, for a line to be one that waits

// What the host is to blame for, and no other device, stream or recorder.
bool is_hosts(Leaf leaf) {
  return !is_busy(leaf) && leaf != Leaf::dependency && leaf != Leaf::launch_latency &&
         leaf != Leaf::unknown && leaf != Leaf::lost && leaf != Leaf::tool;
}

bool is_wait_for_device(Leaf leaf) {
  return leaf == Leaf::sync || leaf == Leaf::after_sync || leaf == Leaf::blocking_copy;
}

// A thread that Python keeps to serve others, such as the one that hands out shared memory: it
// waits, and no code of the program has called for it.
bool stands_by(const Trace& trace, const LineKey& key) {
  if (key.state != HostState::blocked) return false;
  for (uint32_t f = key.stack; f != kNoStack; f = trace.stacks[f].caller)
    if (owner_of(trace.names[trace.stacks[f].file]) == CodeOwner::program) return false;
  return true;
}

// Whether a stack lies in a line that waits, in whatever it calls, or in what one of the two lines
// below it calls: the body of a loop over the values, or what they are handed to.
struct WaitingLine {
  int64_t points = 0;
  uint32_t function = 0;  // number of its name
};
bool is_below_wait(const Trace& trace, uint32_t stack,
                   const std::map<LineId, WaitingLine>& waiting) {
  for (uint32_t f = stack; f != kNoStack; f = trace.stacks[f].caller) {
    const StackNode& n = trace.stacks[f];
    const auto at = waiting.upper_bound({n.file, n.line});
    if (at == waiting.begin()) continue;
    const auto& [above, wait] = *std::prev(at);
    if (above.first == n.file && n.line <= above.second + 2 && n.function == wait.function)
      return true;
  }
  return false;
}

LineKey key_of(const HostSample& s, Leaf leaf) {
  return {leaf, s.thread, s.stack, s.wait, s.holder, s.holder_stack, s.state};
}

void add_model_calls(HostLines& result, const Trace& trace, const StackKinds& kinds,
                     std::vector<CountedSamples> lines, const ForwardShares& forward) {
  bool models = false;
  for (CountedSamples& s : lines) {
    const uint32_t call = kinds.model_call(s.key.stack);
    models = models || call != kNoStack;
    if (call != kNoStack || kinds.is_backward(s.key.stack)) result.model_ns += s.ns;
    if (call == kNoStack) continue;
    s.key.stack = call;
    // Whoever held the interpreter's lock meanwhile, it is one line.
    if (s.key.state == HostState::lock) s.key.state = HostState::running;
    s.key.holder_stack = kNoStack;
  }
  if (!models) result.model_ns = 0;
  result.calls = group_lines(trace, kinds, lines, result.idle_ns, forward);
  backward_last(result.calls);
}

}  // namespace

std::string CodePlace::where() const { return line > 0 ? file + ":" + std::to_string(line) : file; }

struct HostLineCounts::Counts {
  SampleIndex index;
  std::map<LineKey, int64_t> points, long_points, worker_points, wait_points;
};

HostLineCounts::HostLineCounts() : counts_(std::make_unique<Counts>()) {}
HostLineCounts::~HostLineCounts() = default;
HostLineCounts::HostLineCounts(HostLineCounts&&) noexcept = default;

void HostLineCounts::add(const Trace& trace, int64_t start_ns, int64_t end_ns, Leaf leaf,
                         uint32_t thread) {
  if (trace.samples.empty() || !is_hosts(leaf)) return;
  Counts& c = *counts_;
  c.index.update(trace);
  const auto count = [&](uint32_t of, std::map<LineKey, int64_t>& into) {
    return c.index.each(trace, of, start_ns, end_ns, [&](const HostSample& s, int64_t points) {
      into[key_of(s, leaf)] += points;
    });
  };
  const uint32_t process = trace.threads[thread].process;
  uint32_t of = thread;
  if (count(of, c.points) == 0) {
    const uint32_t other = c.index.program_thread(process);
    if (other != kNone && other != thread) count(of = other, c.points);
  }
  if (end_ns - start_ns >= kLong) count(of, c.long_points);
  if (end_ns - start_ns < kShortestForWorkers) return;
  for (const uint32_t worker : c.index.workers(process)) count(worker, c.worker_points);
}

void HostLineCounts::add_wait(const Trace& trace, int64_t start_ns, int64_t end_ns,
                              uint32_t thread) {
  if (trace.samples.empty()) return;
  counts_->index.update(trace);
  counts_->index.each(trace, thread, start_ns, end_ns, [&](const HostSample& s, int64_t points) {
    counts_->wait_points[key_of(s, Leaf::sync)] += points;
  });
}

HostLines HostLineCounts::finish(const Trace& trace, const Budget& idle, const Shares& forward,
                                 const Shares& forward_calls) const {
  const Counts& c = *counts_;
  HostLines result;
  const StackKinds kinds(trace);
  std::array<int64_t, kLeaves> in_leaf{};
  for (size_t l = 0; l < kLeaves; ++l)
    if (is_hosts(static_cast<Leaf>(l))) result.idle_ns += static_cast<double>(idle.ns[l]);
  for (const auto& [key, points] : c.points) {
    in_leaf[static_cast<size_t>(key.leaf)] += points;
    result.samples += points;
  }
  const auto counted = [](const std::map<LineKey, int64_t>& points, const auto& weight) {
    std::vector<CountedSamples> all;
    for (const auto& [key, n] : points) all.push_back({key, n, weight(key, n)});
    return all;
  };
  // The time of a leaf is known; samples divide it among its lines.
  const std::vector<CountedSamples> lines =
      counted(c.points, [&](const LineKey& key, int64_t points) {
        const auto l = static_cast<size_t>(key.leaf);
        return static_cast<double>(idle.ns[l]) * static_cast<double>(points) /
               static_cast<double>(in_leaf[l]);
      });
  result.lines = group_lines(trace, kinds, lines, result.idle_ns, forward);
  add_model_calls(result, trace, kinds, lines, forward_calls);

  const auto one_each = [](const LineKey&, int64_t points) { return static_cast<double>(points); };
  for (const auto& [key, points] : c.long_points) result.long_samples += points;
  result.long_lines = group_lines(trace, kinds, counted(c.long_points, one_each),
                                  static_cast<double>(result.long_samples), {});
  std::map<LineId, WaitingLine> waiting;
  for (const auto& [key, points] : c.wait_points) {
    result.wait_samples += points;
    const StackWords words = stack_words(trace, key.stack);
    if (words.node == kNoStack) continue;
    WaitingLine& line = waiting[{words.file, words.at.line}];
    line.points += points;
    line.function = trace.stacks[words.node].function;
  }
  std::erase_if(waiting, [&](const auto& line) {
    return static_cast<double>(line.second.points) <
           kSomeWaits * static_cast<double>(result.wait_samples);
  });
  result.waits = group_lines(trace, kinds, counted(c.wait_points, one_each),
                             static_cast<double>(result.wait_samples), {});
  std::vector<CountedSamples> compiling;
  double all_compiling_ns = 0;
  for (const CountedSamples& s : lines) {
    const auto leaf = static_cast<size_t>(s.key.leaf);
    if (kinds.compiles(s.key.stack)) {
      result.compiling_ns[leaf] += s.ns;
      all_compiling_ns += s.ns;
      result.compiling_samples += s.points;
      compiling.push_back(s);
    } else if (kinds.makes_data(s.key.stack)) {
      result.making_ns[leaf] += s.ns;
    } else if (kinds.reads_value(s.key.stack) && !is_wait_for_device(s.key.leaf)) {
      result.reading_ns[leaf] += s.ns;
    }
    if (s.key.leaf != Leaf::after_sync) continue;
    if (kinds.prints(s.key.stack) || is_below_wait(trace, s.key.stack, waiting))
      result.needs_value_ns += s.ns;
  }
  result.compiling = group_lines(trace, kinds, compiling, all_compiling_ns, {});

  std::map<LineKey, int64_t> holders;
  for (const auto& [key, points] : c.points) {
    if (key.state != HostState::lock || key.holder_stack == kNoStack) continue;
    holders[{Leaf::gil, key.holder, key.holder_stack, 0, 0, kNoStack, HostState::running}] +=
        points;
    result.holder_samples += points;
  }
  result.holders = group_lines(trace, kinds, counted(holders, one_each),
                               static_cast<double>(result.holder_samples), {});
  for (HostLine& line : result.holders) line.ns = 0;

  std::map<uint32_t, uint32_t> first_threads;  // by process
  for (const auto& [key, points] : c.worker_points) {
    const auto [at, fresh] =
        first_threads.try_emplace(trace.threads[key.thread].process, key.thread);
    if (trace.threads[key.thread].thread < trace.threads[at->second].thread)
      at->second = key.thread;
  }
  result.worker_processes = static_cast<int64_t>(first_threads.size());
  std::map<LineKey, int64_t> workers;
  for (const auto& [key, points] : c.worker_points) {
    if (key.thread != first_threads.at(trace.threads[key.thread].process) && stands_by(trace, key))
      continue;
    workers.emplace(key, points);
    result.worker_samples += points;
  }
  result.workers = group_lines(trace, kinds, counted(workers, one_each),
                               static_cast<double>(result.worker_samples), {});
  std::stable_partition(result.workers.begin(), result.workers.end(),
                        [](const HostLine& line) { return !line.idle_worker; });
  for (HostLine& line : result.workers) line.ns = 0;
  for (HostLine& line : result.waits) line.ns = 0;
  for (HostLine& line : result.long_lines) line.ns = 0;
  return result;
}

}  // namespace saturate::observe
