// SPDX-License-Identifier: Apache-2.0
#include "observe/system/sample_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace saturate::observe {
namespace {

struct ThreadSum {
  std::string name;
  double running = 0, ready = 0;
  int samples = 0;
  std::map<std::string, int> waits;
};

const ProcessView* find(const Snapshot& s, int64_t pid) {
  for (const ProcessView& p : s.processes) {
    if (p.pid == pid && p.seen) return &p;
  }
  return nullptr;
}

bool uses(const ProcessView& p, int gpu) {
  return std::any_of(p.gpus.begin(), p.gpus.end(), [&](const GpuUse& g) { return g.gpu == gpu; });
}

// Values of several GPUs of one process: the busiest one's.
template <class Get>
auto most_of(const Snapshot& s, const ProcessView& p, Get get) {
  decltype(get(s.gpus.front())) best;
  for (const GpuView& g : s.gpus) {
    if (!uses(p, g.info.index)) continue;
    const auto value = get(g);
    if (value && (!best || *value > *best)) best = value;
  }
  return best;
}

class Watch {
 public:
  explicit Watch(int64_t pid) { r_.pid = pid; }

  // The first view has no rates.
  void first(const Snapshot& s, const ProcessView& p) {
    r_.command = p.command;
    r_.user = p.user;
    r_.resident_first = number(p.resident);
    r_.gpu_memory_first = gpu_memory(p);
    r_.no_gpu = s.no_gpu;
  }

  void add_sample(const Snapshot& s, const ProcessView& p) {
    ++r_.samples;
    r_.seconds += s.interval_s;
    add(r_.utilisation, most_of(s, p, [](const GpuView& g) { return g.reading.utilisation; }));
    add(r_.sm, most_of(s, p, [](const GpuView& g) { return g.reading.activity.sm; }));
    add(r_.tensor, most_of(s, p, [](const GpuView& g) { return g.reading.activity.tensor; }));
    add(r_.dram, most_of(s, p, [](const GpuView& g) { return g.reading.activity.dram; }));
    add(r_.power_w, most_of(s, p, [](const GpuView& g) { return g.reading.power_w; }));
    add(r_.sm_mhz, most_of(s, p, [](const GpuView& g) { return g.reading.sm_mhz; }));
    add(r_.pcie_received, most_of(s, p, [](const GpuView& g) { return g.reading.pcie_received; }));
    add(r_.pcie_sent, most_of(s, p, [](const GpuView& g) { return g.reading.pcie_sent; }));
    std::optional<int> own;
    for (const GpuUse& g : p.gpus) {
      if (g.utilisation) own = std::max(own.value_or(0), *g.utilisation);
    }
    add(r_.process_utilisation, own);
    for (const GpuView& g : s.gpus) {
      if (!uses(p, g.info.index)) continue;
      r_.clock_reasons |= g.reading.clock_reasons.value_or(0);
      if (!g.reading.lost.empty()) lost_ = g.reading.lost;
      if (std::count_if(s.processes.begin(), s.processes.end(),
                        [&](const ProcessView& o) { return uses(o, g.info.index); }) > 1)
        r_.shared = true;
    }
    add(r_.cpu, p.cpu);
    add(r_.workers_cpu, p.workers_cpu);
    add(r_.voluntary, p.voluntary);
    add(r_.involuntary, p.involuntary);
    add(r_.read_rate, p.read_rate);
    add(r_.write_rate, p.write_rate);
    add(r_.throttled, p.throttled);
    r_.cpu_limit = p.cpu_limit;
    r_.workers = std::max(r_.workers, p.workers);
    r_.threads = std::max(r_.threads, p.threads);
    r_.gpus = std::max(r_.gpus, static_cast<int>(p.gpus.size()));
    r_.guessed = r_.guessed || p.guessed;
    r_.resident_last = number(p.resident);
    r_.gpu_memory_last = gpu_memory(p);
    if (!r_.gpu_memory_first) r_.gpu_memory_first = r_.gpu_memory_last;
    ++words_[p.verdict.word];
    for (const ThreadRates& t : p.thread_rates) {
      if (!t.running) continue;
      ThreadSum& sum = threads_[t.id];
      sum.name = t.name;
      sum.running += *t.running;
      sum.ready += t.ready.value_or(0);
      ++sum.samples;
      if (t.state != 'R' && !t.waits_in.empty()) ++sum.waits[t.waits_in];
    }
    last_ = p;
    if (last_gpus_.empty()) last_gpus_ = s.gpus;
  }

  ProcessReport finish() {
    for (const auto& [id, sum] : threads_) {
      ProcessReport::Thread t{id, sum.name, "", sum.running / r_.samples, sum.ready / r_.samples,
                              0};
      t.asleep = std::max(0.0, 1 - t.running - t.ready);
      int most = 0;
      for (const auto& [where, count] : sum.waits) {
        if (count > most) {
          most = count;
          t.waits_in = where;
        }
      }
      r_.busiest.push_back(std::move(t));
    }
    std::stable_sort(r_.busiest.begin(), r_.busiest.end(),
                     [](const auto& a, const auto& b) { return a.running > b.running; });
    if (r_.busiest.size() > 5) r_.busiest.resize(5);
    if (r_.samples > 0) judge_means();
    say_unknown();
    return std::move(r_);
  }

 private:
  static std::optional<double> number(const std::optional<int64_t>& value) {
    if (!value) return {};
    return static_cast<double>(*value);
  }
  static std::optional<double> gpu_memory(const ProcessView& p) {
    std::optional<double> sum;
    for (const GpuUse& g : p.gpus) {
      if (g.memory) sum = sum.value_or(0) + static_cast<double>(*g.memory);
    }
    return sum;
  }

  // The rules of one view, over the means: a single sample of 100 ms says little.
  void judge_means() {
    Snapshot s;
    s.gpus = last_gpus_;
    ProcessView p = last_;
    for (GpuView& g : s.gpus) {
      g.reading.lost = lost_;
      g.reading.clock_reasons = r_.clock_reasons;
      g.reading.utilisation = {};
      if (r_.utilisation) g.reading.utilisation = static_cast<int>(r_.utilisation->mean + 0.5);
      g.reading.activity.sm = {};
      if (r_.sm) g.reading.activity.sm = r_.sm->mean;
    }
    for (GpuUse& g : p.gpus) {
      g.utilisation = {};
      if (r_.process_utilisation)
        g.utilisation = static_cast<int>(r_.process_utilisation->mean + 0.5);
    }
    if (r_.cpu) p.cpu = r_.cpu->mean;
    p.workers = r_.workers;
    if (r_.workers_cpu) p.workers_cpu = r_.workers_cpu->mean;
    if (r_.throttled) p.throttled = r_.throttled->mean;
    p.thread_rates.clear();
    for (const auto& t : r_.busiest) {
      ThreadRates rates;
      rates.id = t.id;
      rates.name = t.name;
      rates.waits_in = t.waits_in;
      rates.running = t.running;
      rates.ready = t.ready;
      p.thread_rates.push_back(rates);
    }
    s.processes.push_back(p);
    if (r_.shared) {  // as a neighbour: then only what the driver counts for this process is its
                      // own
      ProcessView other = p;
      other.pid = 0;
      s.processes.push_back(other);
    }
    r_.verdict = judge(p, s);
    r_.agreement = static_cast<double>(words_[r_.verdict.word]) / r_.samples;
  }

  void say_unknown() {
    auto& u = r_.unknown;
    if (!r_.no_gpu.empty()) u.push_back("anything of the GPU: " + r_.no_gpu);
    if (r_.gpus == 0 && r_.no_gpu.empty())
      u.push_back(
          "which GPU it uses: the driver lists it on none (not yet, or in another container)");
    if (r_.gpus > 0 && !r_.sm)
      u.push_back("how many SMs work: this chip or driver has no GPM counters (Hopper and later)");
    if (r_.gpus > 0 && !r_.process_utilisation && r_.shared)
      u.push_back("its own share of a GPU that it shares");
    if (r_.guessed) u.push_back("its GPU for certain: the driver's pid was matched by elimination");
    if (r_.busiest.empty()) u.push_back("its threads: this user may not read them");
    u.push_back(
        "which kernels, copies or waits fill the gaps, how long a step is and what a change would "
        "bring: that needs a trace from inside (saturate doctor trace.json.gz)");
  }

  ProcessReport r_;
  std::map<int64_t, ThreadSum> threads_;
  std::map<std::string, int> words_;
  std::string lost_;
  ProcessView last_;
  std::vector<GpuView> last_gpus_;
};

}  // namespace

ProcessReport sample_process(Sampler& sampler, int64_t pid, double seconds, double period_s,
                             const std::function<bool(double)>& wait) {
  Watch watch(pid);
  Snapshot s = sampler.take();
  const ProcessView* p = find(s, pid);
  if (!p)
    throw Error(Errc::invalid_argument, "doctor",
                fmt::format("there is no process {} here; inside a container pids are the "
                            "container's own (saturate top lists those on GPUs)",
                            pid));
  const int64_t start = p->start_ticks;
  watch.first(s, *p);
  bool ended = false;
  for (double passed = 0; passed < seconds && !ended;) {
    const bool go_on = wait(std::min(period_s, std::max(seconds - passed, 0.1)));
    s = sampler.take();
    passed += s.interval_s;
    p = find(s, pid);
    ended = !p || p->start_ticks != start || p->state == 'Z';
    if (!ended) watch.add_sample(s, *p);
    if (!go_on) break;
  }
  ProcessReport r = watch.finish();
  r.ended = ended;
  if (r.samples == 0) r.verdict = {"unknown", "it ended before it could be sampled"};
  return r;
}

}  // namespace saturate::observe
