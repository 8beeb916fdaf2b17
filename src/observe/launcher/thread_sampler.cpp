// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/thread_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace saturate::observe {
namespace {

constexpr int64_t kListEvery = 20;        // samples between searches for new processes and threads
constexpr int64_t kRestingAfter = 50;     // samples without running, then only every kListEvery
constexpr int64_t kShortestNs = 500'000;  // shorter waits are lost in the noise of reading
// What a thread ran is booked when it stops and at the kernel's ticks, so of one that is running up
// to a tick is missing.
constexpr int64_t kTickNs = 4'000'000;
constexpr int64_t kUnsureNs = 25'000'000;  // so long it is worth waiting for a sample of it asleep
constexpr size_t kShownThreads = 4;

}  // namespace

ThreadSampler::ThreadSampler(pid_t root, std::function<int64_t()> clock, std::string proc)
    : root_(root), clock_(std::move(clock)), reader_(std::move(proc)) {}

void ThreadSampler::sample() {
  const bool all = samples_ % kListEvery == 0;
  if (all) {
    for (const int64_t process : reader_.tree(root_)) {
      for (const int64_t thread : reader_.thread_ids(process))
        threads_.try_emplace({static_cast<pid_t>(process), static_cast<pid_t>(thread)});
    }
  }
  ++samples_;
  ThreadCounts now;
  for (auto at = threads_.begin(); at != threads_.end(); ++at) {
    auto& [key, t] = *at;
    if (!all && t.resting > kRestingAfter) continue;
    const int64_t now_ns = clock_();  // of each: reading hundreds takes milliseconds
    if (!read_thread(key.first, key.second, all, now, reader_.root())) {
      end_block(key.first, key.second, t, now_ns);
      t.resting = INT64_MAX / 2;
      continue;
    }
    if (!all) now.voluntary = t.last.voluntary, now.involuntary = t.last.involuntary;
    if (t.first_ns == 0) {
      t.first = now;
      t.first_ns = now_ns;
    } else {
      const int64_t booked = now.run_ns - t.last.run_ns + now.wait_ns - t.last.wait_ns;
      const int64_t missing = now_ns - t.last_ns - booked;
      if (now.state == 'R' && missing >= kShortestNs && now_ns - t.last_ns < kUnsureNs) {
        t.last.voluntary = now.voluntary, t.last.involuntary = now.involuntary;
        continue;
      }
      if (now.state == 'R' && missing > 0 && missing <= kTickNs) now.run_ns += missing;
      add_interval(key.first, key.second, t, now, now_ns);
    }
    t.last = now;
    t.last_ns = now_ns;
  }
}

void ThreadSampler::add_interval(pid_t process, pid_t thread, Thread& t, const ThreadCounts& now,
                                 int64_t now_ns) {
  const int64_t length = now_ns - t.last_ns;
  const int64_t run = std::clamp<int64_t>(now.run_ns - t.last.run_ns, 0, length);
  const int64_t wait = std::clamp<int64_t>(now.wait_ns - t.last.wait_ns, 0, length - run);
  const int64_t blocked = length - run - wait;
  t.resting = run == 0 && wait == 0 ? std::min<int64_t>(t.resting + 1, INT64_MAX / 4) : 0;
  // The kernel books run time at its ticks too, but a thread seen asleep is up to date.
  const bool runs_now = now.state == 'R';
  if (wait >= kShortestNs) {
    // Where in the interval is not known: at its end when the thread is still ready.
    const int64_t at = runs_now ? now_ns - wait : t.last_ns;
    spans_.push_back({at, at + wait, process, thread, SpanKind::runnable});
  }
  if (blocked < kShortestNs) {
    end_block(process, thread, t, t.last_ns);
  } else if (!runs_now) {
    // It stopped in this interval, or slept through it, or woke for a moment: then the part that
    // it ran is put first.
    if (run + wait > kShortestNs / 5) {
      end_block(process, thread, t, t.last_ns);
      t.blocked_from_ns = t.last_ns + run + wait;
    } else if (t.blocked_from_ns < 0) {
      t.blocked_from_ns = t.last_ns;
    }
  } else {
    if (t.blocked_from_ns < 0) t.blocked_from_ns = t.last_ns;
    end_block(process, thread, t, now_ns - run - wait);
  }
  t.ran_to_end = runs_now;
}

void ThreadSampler::end_block(pid_t process, pid_t thread, Thread& t, int64_t end_ns) {
  if (t.blocked_from_ns >= 0 && end_ns - t.blocked_from_ns >= kShortestNs)
    spans_.push_back({t.blocked_from_ns, end_ns, process, thread, SpanKind::blocked});
  t.blocked_from_ns = -1;
}

void ThreadSampler::take_spans(Trace& trace) {
  for (const Span& s : spans_) {
    const uint32_t thread =
        trace.threads.add({static_cast<uint32_t>(s.process), static_cast<uint64_t>(s.thread)});
    trace.spans.push_back({s.start_ns, s.end_ns,
                           trace.names.add(s.kind == SpanKind::blocked ? "blocked in the kernel"
                                                                       : "ready, without a core"),
                           thread, s.kind});
  }
  spans_.clear();
}

std::vector<std::string> ThreadSampler::summary() const {
  struct Line {
    double core_share;
    std::string text;
  };
  std::vector<Line> lines;
  int64_t voluntary = 0, involuntary = 0, longest_ns = 0;
  double waited_s = 0, cores = 0;
  for (const auto& [key, t] : threads_) {
    const int64_t seen = t.last_ns - t.first_ns;
    if (t.first_ns == 0 || seen <= 0) continue;
    longest_ns = std::max(longest_ns, seen);
    voluntary += t.last.voluntary - t.first.voluntary;
    involuntary += t.last.involuntary - t.first.involuntary;
    waited_s += 1e-9 * static_cast<double>(t.last.wait_ns - t.first.wait_ns);
    const double share =
        static_cast<double>(t.last.run_ns - t.first.run_ns) / static_cast<double>(seen);
    cores += share;
    lines.push_back({share, fmt::format("{} ({}) {:.0f}%", t.last.name, key.second, 100 * share)});
  }
  if (longest_ns == 0) return {};
  const double seconds = 1e-9 * static_cast<double>(longest_ns);
  std::vector<std::string> out;
  out.push_back(fmt::format(
      "host: {} threads on {:.2f} cores; context switches a second: {:.0f} voluntary, {:.0f} "
      "involuntary; ready without a core for {:.2f} s of {:.1f} s",
      lines.size(), cores, static_cast<double>(voluntary) / seconds,
      static_cast<double>(involuntary) / seconds, waited_s, seconds));
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.core_share > b.core_share; });
  std::string busiest;
  for (size_t i = 0; i < std::min(kShownThreads, lines.size()) && lines[i].core_share >= 0.01; ++i)
    busiest += (i > 0 ? ", " : "") + lines[i].text;
  if (!busiest.empty()) out.push_back("host: threads that ran most: " + busiest);
  return out;
}

}  // namespace saturate::observe
