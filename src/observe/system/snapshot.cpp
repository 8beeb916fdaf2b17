// SPDX-License-Identifier: Apache-2.0
#include "observe/system/snapshot.h"

#include <algorithm>
#include <chrono>
#include <set>

namespace saturate::observe {
namespace {

using Clock = std::chrono::steady_clock;

struct Before {
  ProcessTimes times;
  std::map<int64_t, ThreadTimes> threads;
  std::optional<CgroupCpu> cgroup;
  Clock::time_point at;
};

// Per second; empty when one of the two is missing or the counter went back.
std::optional<double> rate(std::optional<int64_t> now, std::optional<int64_t> before,
                           double seconds) {
  if (!now || !before || *now < *before || seconds <= 0) return {};
  return static_cast<double>(*now - *before) / seconds;
}

ThreadRates thread_rates(const ThreadTimes& now, const ThreadTimes* before, double seconds) {
  ThreadRates r;
  r.id = now.id;
  r.name = now.name;
  r.waits_in = now.waits_in;
  r.state = now.state;
  if (!before) return r;
  const auto share = [&](std::optional<int64_t> a, std::optional<int64_t> b) {
    std::optional<double> s = rate(a, b, seconds * 1e9);
    if (s) s = std::min(*s, 1.0);
    return s;
  };
  r.running = share(now.run_ns, before->run_ns);
  r.ready = share(now.wait_ns, before->wait_ns);
  r.voluntary = rate(now.voluntary, before->voluntary, seconds);
  r.involuntary = rate(now.involuntary, before->involuntary, seconds);
  return r;
}

}  // namespace

struct Sampler::Past {
  std::map<int64_t, Before> before, now;
  ProcessReader::HostTimes host;
  bool any = false;
  Clock::time_point at;
};

Sampler::Sampler(std::unique_ptr<GpuMonitor> monitor, std::string no_gpu, ProcessReader reader,
                 SamplerOptions options)
    : monitor_(std::move(monitor)),
      no_gpu_(std::move(no_gpu)),
      reader_(std::move(reader)),
      options_(std::move(options)),
      past_(std::make_unique<Past>()) {}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;

void Sampler::fill(ProcessView& view, double interval_s) {
  const auto times = reader_.process(view.pid);
  view.seen = times.has_value();
  if (!times) return;
  view.parent = times->parent;
  view.start_ticks = times->start_ticks;
  view.user = times->user;
  view.name = times->name;
  view.command = times->command;
  view.state = times->state;
  view.threads = times->threads;
  view.resident = times->resident_bytes;
  if (!times->inner_pids.empty()) view.container_pid = times->inner_pids.back();
  Before& now = past_->now[view.pid];
  now.times = *times;
  now.at = Clock::now();
  now.cgroup = reader_.cgroup_cpu(view.pid);
  if (now.cgroup) view.cpu_limit = now.cgroup->cores;

  const auto found = past_->before.find(view.pid);
  // A pid that was given to another process has no past.
  const Before* before =
      found != past_->before.end() && found->second.times.start_ticks == times->start_ticks
          ? &found->second
          : nullptr;
  const double seconds =
      before ? std::chrono::duration<double>(now.at - before->at).count() : interval_s;
  for (ThreadTimes& t : reader_.threads(view.pid)) {
    const ThreadTimes* old = nullptr;
    if (before) {
      const auto it = before->threads.find(t.id);
      if (it != before->threads.end()) old = &it->second;
    }
    const ThreadRates r = thread_rates(t, old, seconds);
    // Threads that ended take their counts along, so rates are summed, not counters.
    if (r.voluntary) view.voluntary = view.voluntary.value_or(0) + *r.voluntary;
    if (r.involuntary) view.involuntary = view.involuntary.value_or(0) + *r.involuntary;
    view.thread_rates.push_back(r);
    now.threads.emplace(t.id, std::move(t));
  }
  std::stable_sort(view.thread_rates.begin(), view.thread_rates.end(),
                   [](const ThreadRates& a, const ThreadRates& b) {
                     return a.running.value_or(-1) > b.running.value_or(-1);
                   });
  if (!before) return;
  view.cpu = rate(times->cpu_ns, before->times.cpu_ns, seconds * 1e9);
  view.read_rate = rate(times->read_bytes, before->times.read_bytes, seconds);
  view.write_rate = rate(times->written_bytes, before->times.written_bytes, seconds);
  if (times->resident_bytes && before->times.resident_bytes && seconds > 0)
    view.resident_growth =
        static_cast<double>(*times->resident_bytes - *before->times.resident_bytes) / seconds;
  if (now.cgroup && before->cgroup && now.cgroup->path == before->cgroup->path) {
    const auto periods = rate(now.cgroup->periods, before->cgroup->periods, 1);
    const auto stopped = rate(now.cgroup->throttled_periods, before->cgroup->throttled_periods, 1);
    if (periods && stopped) view.throttled = *periods > 0 ? *stopped / *periods : 0.0;
  }
}

void Sampler::add_process(const GpuProcess& use, Snapshot& s) {
  const GpuUse gpu{use.gpu, use.memory, use.utilisation};
  for (ProcessView& p : s.processes) {
    if (p.pid != use.pid) continue;
    p.gpus.push_back(gpu);
    return;
  }
  ProcessView view;
  view.pid = use.pid;
  view.gpus.push_back(gpu);
  s.processes.push_back(std::move(view));
}

// Inside a container the driver may count pids as the host does. Then a pid of ours that happens to
// have the same number is another process, and blaming (or killing) it would be wrong. If exactly
// one of the driver's processes is missing and exactly one of ours uses the GPU unclaimed, they are
// the same.
void Sampler::map_hidden(std::vector<GpuProcess>& uses, std::vector<int64_t>& guessed) const {
  if (!reader_.inner_namespace().value_or(false)) return;
  std::set<int64_t> hidden, known;
  for (const GpuProcess& u : uses) {
    const bool ours = reader_.parent(u.pid).has_value() && reader_.uses_gpu(u.pid).value_or(true);
    (ours ? known : hidden).insert(u.pid);
  }
  if (hidden.empty()) return;
  std::vector<int64_t> candidates;
  if (hidden.size() == 1) {
    for (const int64_t pid : reader_.pids()) {
      if (!known.count(pid) && reader_.uses_gpu(pid).value_or(false) &&
          reader_.file("self/stat").value_or("").find(std::to_string(pid) + " ") != 0)
        candidates.push_back(pid);
    }
  }
  for (GpuProcess& u : uses) {
    if (!hidden.count(u.pid)) continue;
    if (candidates.size() == 1) {
      u.pid = candidates[0];
      guessed.push_back(u.pid);
    } else {
      u.pid = -u.pid;  // a number that no process here can have
    }
  }
}

void Sampler::add_workers(Snapshot& s) {
  const std::multimap<int64_t, int64_t> children = reader_.children();
  std::set<int64_t> listed;
  for (const ProcessView& p : s.processes) listed.insert(p.pid);
  std::vector<ProcessView> all;
  for (ProcessView& p : s.processes) {
    std::vector<ProcessView> found;
    std::vector<int64_t> open = {p.pid};
    std::set<int64_t> met = {p.pid};  // a tree read while it changes may hold a circle
    while (!open.empty() && p.seen) {
      const int64_t at = open.back();
      open.pop_back();
      for (auto [i, end] = children.equal_range(at); i != end; ++i) {
        if (!met.insert(i->second).second || listed.count(i->second)) continue;
        ProcessView w;
        w.pid = i->second;
        w.worker = true;
        fill(w, s.interval_s);
        if (!w.seen) continue;
        open.push_back(w.pid);
        ++p.workers;
        if (w.cpu) p.workers_cpu = p.workers_cpu.value_or(0) + *w.cpu;
        found.push_back(std::move(w));
      }
    }
    std::sort(found.begin(), found.end(),
              [](const ProcessView& a, const ProcessView& b) { return a.pid < b.pid; });
    all.push_back(std::move(p));
    for (ProcessView& w : found) all.push_back(std::move(w));
  }
  s.processes = std::move(all);
}

Snapshot Sampler::take() {
  Snapshot s;
  const Clock::time_point now = Clock::now();
  s.unix_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (past_->any) s.interval_s = std::chrono::duration<double>(now - past_->at).count();
  past_->at = now;
  s.no_gpu = no_gpu_;
  std::vector<GpuProcess> uses;
  if (monitor_) {
    s.driver = monitor_->driver_version();
    s.cuda = monitor_->cuda_version();
    for (const GpuInfo& info : monitor_->gpus()) {
      if (!options_.gpus.empty() &&
          std::find(options_.gpus.begin(), options_.gpus.end(), info.index) == options_.gpus.end())
        continue;
      s.gpus.push_back({info, monitor_->read(info.index, options_.pcie)});
      for (const GpuProcess& p : monitor_->processes(info.index)) uses.push_back(p);
    }
  }
  std::vector<int64_t> guessed;
  map_hidden(uses, guessed);
  for (const GpuProcess& use : uses) add_process(use, s);
  for (const int64_t pid : options_.also) {
    bool there = false;
    for (const ProcessView& p : s.processes) there = there || p.pid == pid;
    if (there) continue;
    ProcessView view;
    view.pid = pid;
    s.processes.push_back(std::move(view));
  }
  std::sort(s.processes.begin(), s.processes.end(),
            [](const ProcessView& a, const ProcessView& b) { return a.pid < b.pid; });
  past_->now.clear();
  for (ProcessView& p : s.processes) {
    p.guessed = std::find(guessed.begin(), guessed.end(), p.pid) != guessed.end();
    if (p.pid > 0) fill(p, s.interval_s);
  }
  if (options_.workers) add_workers(s);

  const ProcessReader::HostTimes host = reader_.host();
  s.cores = host.cores;
  s.memory_total = host.memory_total;
  s.memory_available = host.memory_available;
  if (past_->any) {
    const auto total = rate(host.total_ticks, past_->host.total_ticks, 1);
    const auto busy = rate(host.busy_ticks, past_->host.busy_ticks, 1);
    const auto wait = rate(host.io_wait_ticks, past_->host.io_wait_ticks, 1);
    if (total && *total > 0) {
      if (busy) s.host_cpu = *busy / *total;
      if (wait) s.host_io_wait = *wait / *total;
    }
  }
  past_->host = host;
  past_->before = std::move(past_->now);
  past_->now.clear();
  past_->any = true;
  for (ProcessView& p : s.processes) {
    if (!p.worker) p.verdict = judge(p, s);
  }
  return s;
}

}  // namespace saturate::observe
