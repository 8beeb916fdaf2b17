// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/line_groups.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "observe/analyse/stack_words.h"

namespace saturate::observe {
namespace {

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
  double ns = 0, backward_ns = 0, compiles_ns = 0, runs_backward_ns = 0;
  int64_t samples = 0, blocked = 0;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, Alike>
      alike;  // by stack of Python, thread, wait, holder
  std::map<std::pair<std::string, std::string>, int64_t> native;  // by function and file
  std::map<Leaf, double> leaves;
};

// A function of the program, by the numbers of its file's and its own name.
using Function = std::pair<uint32_t, uint32_t>;

template <class Map>
auto most_of(const Map& counts, const auto& count) {
  return std::max_element(counts.begin(), counts.end(), [&](const auto& a, const auto& b) {
    return count(a.second) < count(b.second);
  });
}

std::string thread_name(const Trace& trace, uint32_t id) {
  const ThreadKey& key = trace.threads[id];
  uint64_t oldest = key.thread;
  for (uint32_t t = 0; t < trace.threads.size(); ++t)
    if (trace.threads[t].process == key.process) oldest = std::min(oldest, trace.threads[t].thread);
  return key.thread == oldest ? std::string("main thread") : "thread " + std::to_string(key.thread);
}

// Issuing, and what the host does around it: what a backward pass is made of.
bool is_issuing(Leaf leaf) {
  return is_busy(leaf) || leaf == Leaf::launch || leaf == Leaf::launch_latency ||
         leaf == Leaf::host_code || leaf == Leaf::after_sync || leaf == Leaf::blocked;
}

// The innermost function that, with all that it calls, holds half of the time. One that does nothing
// but call another holds as much as that one.
Function half_of_all(const Trace& trace, const std::vector<CountedSamples>& counted) {
  struct Held {
    double ns = 0, depth = 0;  // depth: frames of the program below it, times ns
  };
  std::map<Function, Held> inclusive;
  double all = 0;
  for (const CountedSamples& c : counted) {
    all += c.ns;
    std::set<Function> seen;
    int below = 0;
    for (uint32_t f = c.key.stack; f != kNoStack; f = trace.stacks[f].caller) {
      const StackNode& n = trace.stacks[f];
      if (owner_of(trace.names[n.file]) != CodeOwner::program) continue;
      const Function function{n.file, n.function};
      if (seen.insert(function).second) {
        inclusive[function].ns += c.ns;
        inclusive[function].depth += c.ns * below;
      }
      ++below;
    }
  }
  Function best{0, 0};
  const Held* least = nullptr;
  for (const auto& [function, held] : inclusive) {
    if (2 * held.ns < all) continue;
    const double more = least == nullptr ? -1 : (held.ns - least->ns) / all;
    constexpr double kAlike = 1e-9;  // of sums in another order
    if (more > kAlike || (more > -kAlike && least != nullptr && held.depth >= least->depth))
      continue;
    best = function;
    least = &held;
  }
  return best;
}

bool is_fetch(const Trace& trace, uint32_t node) {
  return trace.names[trace.stacks[node].file].ends_with("torch/utils/data/_utils/fetch.py");
}

// PyTorch's loader asks for one item after the other, in a line that does nothing else. What is found in
// that line itself, a call that begins or objects that are thrown away, goes with the items: a stack in
// the line of the program that most is found in below it, or none.
uint32_t item_line(const Trace& trace, const std::vector<CountedSamples>& counted) {
  std::map<LineId, std::pair<double, uint32_t>> below;  // time, and a stack
  for (const CountedSamples& c : counted) {
    bool program = false;
    for (uint32_t f = c.key.stack; f != kNoStack; f = trace.stacks[f].caller) {
      program = program || owner_of(trace.names[trace.stacks[f].file]) == CodeOwner::program;
      if (!is_fetch(trace, f)) continue;
      if (!program) break;
      auto& [ns, stack] = below[line_of(trace, c.key.stack)];
      ns += c.ns;
      stack = c.key.stack;
      break;
    }
  }
  const auto most = most_of(below, [](const auto& line) { return line.first; });
  return most == below.end() ? kNoStack : most->second.second;
}

HostLine to_line(const Trace& trace, const Group& group, const Sum& sum, double all_ns) {
  const Alike& most = most_of(sum.alike, [](const Alike& a) { return a.samples; })->second;
  HostLine line;
  line.at = most.words.at;
  line.innermost = most.words.innermost;
  line.caller = most.words.caller;
  line.via = most.words.via;
  line.remark = most.words.remark;
  line.idle_worker = most.words.idle_worker;
  line.compiles = 2 * sum.compiles_ns > sum.ns;
  line.runs_backward = 2 * sum.runs_backward_ns > sum.ns;
  line.thread = thread_name(trace, most.thread);
  if (group.lock || 2 * sum.blocked > sum.samples) line.wait = trace.names[most.wait];
  if (group.lock && most.holder.at.known()) {
    line.holder = most.holder.at;
    line.holder_thread = thread_name(trace, most.holder_thread);
  }
  if (!sum.native.empty()) {
    const auto native = most_of(sum.native, [](int64_t samples) { return samples; });
    line.native.function = native->first.first;
    line.native.file = native->first.second;
    line.native_share = static_cast<double>(native->second) / static_cast<double>(sum.samples);
  }
  line.ns = sum.ns;
  line.samples = sum.samples;
  line.share = all_ns > 0 ? sum.ns / all_ns : 0;
  line.backward = all_ns > 0 ? sum.backward_ns / all_ns : 0;
  line.leaf = most_of(sum.leaves, [](double ns) { return ns; })->first;
  return line;
}

}  // namespace

LineId line_of(const Trace& trace, uint32_t stack) {
  const StackWords words = stack_words(trace, stack);
  return {words.file, words.at.line};
}

std::vector<HostLine> group_lines(const Trace& trace, const StackKinds& kinds,
                                  const std::vector<CountedSamples>& counted, double all_ns,
                                  const ForwardShares& forward) {
  std::map<Group, Sum> groups;
  std::map<Group, uint32_t> functions;  // a stack node of the group's own place
  double backward_ns = 0;
  const uint32_t item = item_line(trace, counted);
  for (const CountedSamples& c : counted) {
    LineKey key = c.key;
    if (item != kNoStack) {
      const uint32_t node = stack_words(trace, key.stack).node;
      if (node != kNoStack && is_fetch(trace, node)) key.stack = item;
    }
    const StackWords words = stack_words(trace, key.stack);
    StackWords holder;
    Group g{words.file, words.at.line, key.state == HostState::lock, 0, 0};
    if (key.holder_stack != kNoStack) {
      holder = stack_words(trace, key.holder_stack);
      g.holder_file = holder.file, g.holder_line = holder.at.line;
    }
    Sum& sum = groups[g];
    sum.ns += c.ns;
    sum.samples += c.points;
    sum.leaves[key.leaf] += c.ns;
    if (kinds.compiles(key.stack)) sum.compiles_ns += c.ns;
    if (kinds.is_backward(key.stack)) sum.runs_backward_ns += c.ns;
    if (kinds.is_backward(key.stack) && is_issuing(key.leaf)) backward_ns += c.ns;
    if (key.state == HostState::blocked) sum.blocked += c.points;
    if (words.native.known()) sum.native[{words.native.function, words.native.file}] += c.points;
    const uint32_t python = words.native.known() ? trace.stacks[key.stack].caller : key.stack;
    Alike& alike = sum.alike[{python, key.thread, key.wait, key.holder_stack}];
    alike.samples += c.points;
    alike.words = words;
    alike.holder = holder;
    alike.thread = key.thread;
    alike.holder_thread = key.holder;
    alike.wait = key.wait;
    functions[g] = words.node;
  }
  double forward_ns = 0;
  const auto forward_of = [&](const Group& g) {
    const auto at = forward.find({g.file, g.line});
    return at == forward.end() ? 0 : at->second;
  };
  for (const auto& [group, sum] : groups) forward_ns += forward_of(group);
  for (auto& [group, sum] : groups)
    if (forward_ns > 0) sum.backward_ns = backward_ns * forward_of(group) / forward_ns;

  const Function half = half_of_all(trace, counted);
  const auto is_half = [&](const Group& g) {
    const uint32_t node = functions.at(g);
    return node != kNoStack &&
           Function{trace.stacks[node].file, trace.stacks[node].function} == half;
  };
  double of_half = 0, largest = 0;
  for (const auto& [group, sum] : groups) {
    if (is_half(group)) of_half += sum.ns + sum.backward_ns;
    largest = std::max(largest, sum.ns + sum.backward_ns);
  }
  std::vector<std::pair<bool, HostLine>> lines;
  for (const auto& [group, sum] : groups) {
    lines.emplace_back(of_half >= largest && is_half(group), to_line(trace, group, sum, all_ns));
    if (lines.back().first && all_ns > 0) lines.back().second.function_share = of_half / all_ns;
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first;
    return a.second.share + a.second.backward > b.second.share + b.second.backward;
  });
  std::vector<HostLine> result;
  for (auto& [first, line] : lines) result.push_back(std::move(line));
  return result;
}

void backward_last(std::vector<HostLine>& lines) {
  const auto known = [](const HostLine& line) { return line.backward > 0; };
  if (std::any_of(lines.begin(), lines.end(), known))
    std::stable_partition(lines.begin(), lines.end(),
                          [](const HostLine& line) { return !line.runs_backward; });
}

}  // namespace saturate::observe
