// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/thread_sampler.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/counted.h"

namespace saturate::observe {
namespace {

constexpr int64_t kListEvery = 20;        // samples between searches for new processes and threads
constexpr int64_t kRestingAfter = 50;     // samples without running, then only every kListEvery
constexpr int64_t kShortestNs = 500'000;  // shorter waits are lost in the noise of reading
// What a thread ran is booked when it stops and at the kernel's ticks, so of one that is running up
// to a tick is missing.
constexpr int64_t kTickNs = 4'000'000;
constexpr int64_t kUnsureNs = 25'000'000;  // so long it is worth waiting for a sample of it asleep
constexpr int64_t kRecentNs =
    1'000'000'000;                         // for so long waits that no sample met are as the last
constexpr int64_t kSplitNs = 100'000'000;  // of waits between which a thread ran a little
constexpr int64_t kTicksOfShare = 5;       // hundredths of a second, mostly
constexpr int64_t kSleptLong = 5;          // samples: only then its state is not read again
constexpr size_t kFilesAThread = 4;
constexpr size_t kShownThreads = 4;

}  // namespace

ThreadSampler::ThreadSampler(pid_t root, std::function<int64_t()> clock, std::string proc,
                             WaitReader::ReadMemory memory, const std::string& own_folder)
    : root_(root),
      clock_(std::move(clock)),
      reader_(std::move(proc)),
      open_(reader_.root(), clock_, own_folder),
      uses_(reader_.root(), open_),
      waits_(reader_.root(), open_, uses_, clock_, std::move(memory)) {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
  most_kept_ = known ? static_cast<size_t>(limit.rlim_cur / 2 / kFilesAThread) : 0;
}

void ThreadSampler::close_files(Thread& t) {
  t.files.close();
  if (t.files.keep) --kept_;
  t.files.keep = false;
}

void ThreadSampler::find_threads(int64_t now_ns) {
  std::set<pid_t> found;
  for (const int64_t id : reader_.tree(root_)) {
    const auto process = static_cast<pid_t>(id);
    found.insert(process);
    uses_.look(process, now_ns);
    for (const int64_t thread : reader_.thread_ids(process))
      threads_.try_emplace({process, static_cast<pid_t>(thread)});
  }
  for (const pid_t process : processes_) {
    if (found.contains(process)) continue;
    uses_.forget(process);
    waits_.forget(process);
  }
  processes_ = std::move(found);
}

void ThreadSampler::sample() {
  const bool all = samples_ % kListEvery == 0;
  if (all) find_threads(clock_());
  ++samples_;
  ThreadCounts now;
  for (auto at = threads_.begin(); at != threads_.end(); ++at) {
    auto& [key, t] = *at;
    if (!all && t.resting > kRestingAfter) continue;
    const int64_t now_ns = clock_();  // of each: reading hundreds takes milliseconds
    if (!t.files.keep && t.resting == 0 && t.first_ns > 0 && kept_ < most_kept_) {
      t.files.keep = true;
      ++kept_;
    }
    const bool slept = t.resting >= kSleptLong && (t.last.state == 'S' || t.last.state == 'D');
    if (!read_thread(key.first, key.second, all, now, reader_.root(), t.files,
                     slept ? &t.last : nullptr)) {
      close_files(t);
      end_block(key.first, key.second, t, now_ns);
      t.resting = INT64_MAX / 2;
      continue;
    }
    if (!all) {
      now.voluntary = t.last.voluntary, now.involuntary = t.last.involuntary;
      now.may_use = t.last.may_use;
    }
    read_wait(key.first, key.second, t, now, now_ns);
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

// A thread that has not run since is still in the same call.
void ThreadSampler::read_wait(pid_t process, pid_t thread, Thread& t, const ThreadCounts& now,
                              int64_t now_ns) {
  if (now.state != 'S' && now.state != 'D') return;
  if (t.wait_run_ns != now.run_ns) {
    t.wait = waits_.read(process, thread, now.state, t.files.syscall, t.files.keep);
    t.wait_run_ns = now.run_ns;
  }
  t.wait_seen_ns = now_ns;
}

// Of what the thread ran since the last interval, the part that copied files.
ThreadSampler::Copies ThreadSampler::copies(pid_t process, pid_t thread, Thread& t,
                                            const ThreadCounts& now, int64_t now_ns, int64_t run) {
  ThreadIo io;
  if (run < kShortestNs || !read_thread_io(process, thread, io, reader_.root(), t.files)) return {};
  const bool first = !std::exchange(t.io_read, true);
  const ThreadIo before = std::exchange(t.io, io);
  const int64_t user = now.user_ticks - t.tick_user, system = now.system_ticks - t.tick_system;
  if (user + system >= kTicksOfShare) {
    t.system_share = static_cast<double>(system) / static_cast<double>(user + system);
    t.tick_user = now.user_ticks, t.tick_system = now.system_ticks;
  }
  if (first) return {};
  const auto copied =
      uses_.copied(process, io.read - before.read, io.written - before.written, run, now_ns);
  if (!copied) return {};
  return {{copied->kind, copied->name},
          copied->whole ? run : static_cast<int64_t>(static_cast<double>(run) * t.system_share)};
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
    spans_.push_back({at, at + wait, process, thread, SpanKind::runnable, ""});
  }
  const WaitReader::Wait seen = now_ns - t.wait_seen_ns < kRecentNs ? t.wait : WaitReader::Wait{};
  const Copies copied = copies(process, thread, t, now, now_ns, run);
  if (copied.ns >= kShortestNs && (copied.ns >= blocked || copied.wait == seen)) {
    if (t.blocked_from_ns >= 0 &&
        (t.block != copied.wait || t.last_ns - t.blocked_from_ns >= kSplitNs))
      end_block(process, thread, t, t.last_ns);
    if (t.blocked_from_ns < 0) begin_block(t, t.last_ns, copied.wait);
    const int64_t stretch = copied.ns + (copied.wait == seen ? blocked : 0);
    if (10 * stretch < 9 * length) end_block(process, thread, t, t.last_ns + stretch);
    t.ran_to_end = runs_now;
    return;
  }
  if (blocked < kShortestNs) {
    end_block(process, thread, t, t.last_ns);
  } else if (!runs_now) {
    // It stopped in this interval, or slept through it, or woke for a moment: then the part that
    // it ran is put first.
    if (run + wait > kShortestNs / 5) {
      end_block(process, thread, t, t.last_ns);
      begin_block(t, t.last_ns + run + wait, seen);
    } else if (t.blocked_from_ns < 0) {
      begin_block(t, t.last_ns, seen);
    } else if (t.block != seen || (t.woke && t.last_ns - t.blocked_from_ns >= kSplitNs)) {
      end_block(process, thread, t, t.last_ns);
      begin_block(t, t.last_ns, seen);
    }
    t.woke = t.woke || run > 0;
  } else {
    if (t.blocked_from_ns < 0) begin_block(t, t.last_ns, seen);
    end_block(process, thread, t, now_ns - run - wait);
  }
  t.ran_to_end = runs_now;
}

void ThreadSampler::begin_block(Thread& t, int64_t start_ns, const WaitReader::Wait& wait) {
  t.blocked_from_ns = start_ns;
  t.block = wait;
  t.woke = false;
}

void ThreadSampler::end_block(pid_t process, pid_t thread, Thread& t, int64_t end_ns) {
  if (t.blocked_from_ns >= 0 && end_ns - t.blocked_from_ns >= kShortestNs) {
    spans_.push_back({t.blocked_from_ns, end_ns, process, thread, t.block.kind, t.block.name});
    if (t.block.kind != SpanKind::blocked && t.block.kind != SpanKind::gil)
      uses_.add_time(t.block.kind, t.block.name, thread, t.last.name, t.blocked_from_ns, end_ns);
  }
  t.blocked_from_ns = -1;
}

void ThreadSampler::finish() {
  for (auto& [key, t] : threads_) end_block(key.first, key.second, t, t.last_ns);
}

void ThreadSampler::take_spans(Trace& trace) {
  for (const Span& s : spans_) {
    const uint32_t thread =
        trace.threads.add({static_cast<uint32_t>(s.process), static_cast<uint64_t>(s.thread)});
    trace.spans.push_back(
        {s.start_ns, s.end_ns,
         trace.names.add(s.kind == SpanKind::runnable ? "ready, without a core" : s.name), thread,
         s.kind});
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
  std::map<int64_t, std::pair<size_t, double>>
      by_cores;  // threads and what they used, by what they may use
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
    if (t.last.may_use > 0) {
      auto& [count, used] = by_cores[t.last.may_use];
      ++count;
      used += share;
    }
    lines.push_back({share, fmt::format("{} ({}) {:.0f}%", t.last.name, key.second, 100 * share)});
  }
  if (longest_ns == 0) return {};
  const double seconds = 1e-9 * static_cast<double>(longest_ns);
  std::vector<std::string> out;
  out.push_back(
      fmt::format("host: {} on {:.2f} cores; context switches a second: {:.0f} voluntary, {:.0f} "
                  "involuntary; ready without a core for {:.2f} s of {:.1f} s",
                  counted(lines.size(), "thread"), cores, static_cast<double>(voluntary) / seconds,
                  static_cast<double>(involuntary) / seconds, waited_s, seconds));
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.core_share > b.core_share; });
  std::string busiest;
  for (size_t i = 0; i < std::min(kShownThreads, lines.size()) && lines[i].core_share >= 0.01; ++i)
    busiest += (i > 0 ? ", " : "") + lines[i].text;
  if (!busiest.empty()) out.push_back("host: threads that ran most: " + busiest);
  const int64_t machine = cores_of_machine(reader_.root());
  if (!by_cores.empty() && by_cores.begin()->first < machine) {
    const auto& [may_use, threads] = *by_cores.begin();
    out.push_back(fmt::format(
        "host: {} of {} may run on {} of the machine's {} only (taskset, sched_setaffinity or a "
        "container; children inherit it), and used {:.2f}",
        threads.first, counted(lines.size(), "thread"), may_use,
        counted(static_cast<size_t>(machine), "core"), threads.second));
  }
  for (const std::string& line : waits_.refused()) out.push_back("host: " + line);
  if (!uses_.refused().empty())
    out.push_back("host: " + uses_.refused() + ", so bytes by file are not known");
  return out;
}

}  // namespace saturate::observe
