// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/recorder.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <tuple>

#include "observe/capture/cupti_library.h"
#include "observe/capture/other_profiler.h"
#include "observe/capture/several_clients.h"

namespace saturate::observe::cupti {
namespace {

constexpr int64_t kTurnNs = 100'000'000, kFirstTurnNs = 50'000'000;
constexpr int64_t kPatienceNs = 500'000'000;  // of a program that ends, for the last records
constexpr int kEndingShift = 8;               // signals are below 65
constexpr size_t kMostSlowdowns = 1024;
constexpr int64_t kMostAllocationsPerS = 1'000, kCountNs = 250'000'000;  // and releases
constexpr int64_t kLeastPace = 10;  // calls in a stretch that give a pace
// Records may come this much after their end: a buffer is handed over when all in it is complete.
constexpr int64_t kDisorderNs = 2'000'000'000;
constexpr uint32_t kMostCallbacks = 2048;
constexpr const char* kByNames =
    "what new kernels compute in is known by their names alone, not by their code";
// Before this version of CUPTI, JAX often ends with CUDA_ERROR_LAUNCH_FAILED under the capture: on
// an H200 four runs of five with flushes, three of eight without; of three with 13.5 and flushes
// none. Why is not known; programs that change their graphs are not flushed with older ones.
constexpr uint32_t kFlushesBesideChanges = 130500;
// kGraphTrace is not among them: see open(). kSynchronization is, where it is asked for.
constexpr uint32_t kKinds[] = {kConcurrentKernel, kMemcpy, kMemcpyPeer, kMemset, kOverhead};

Recorder* the_recorder = nullptr;

// CUPTI's clock.
int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// A limit on the size of files ends who writes beyond it: the capture, then, and not the program.
class WithoutSizeSignal {
 public:
  WithoutSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~WithoutSizeSignal() {
    const timespec at_once{};
    if (sigismember(&before_, SIGXFSZ) == 0) sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSizeSignal(const WithoutSizeSignal&) = delete;
  WithoutSizeSignal& operator=(const WithoutSizeSignal&) = delete;

 private:
  sigset_t signal_{}, before_{};
};

void leave_note(const std::string& folder, const std::string& problem) {
  const std::string path = folder + "/" + std::to_string(getpid()) + ".failed";
  if (std::FILE* file = std::fopen(path.c_str(), "w")) {
    std::fprintf(file, "%s\n", problem.c_str());
    std::fclose(file);
  }
}

bool has(std::string_view name, std::string_view part) { return name.find(part) != name.npos; }

// Whether a loop makes calls of this kind at a steady pace; memory is taken in bursts.
bool wanted_pace(const std::string& name) {
  for (const char* part : {"Launch", "Synchronize", "Memcpy", "Memset", "Event"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

std::string tenths(double value) {
  const int64_t n = std::lround(10 * value);
  return std::to_string(n / 10) + "." + std::to_string(n % 10);
}

// By its libraries: a framework loads them before it starts CUDA.
std::string framework() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        auto& name = *static_cast<std::string*>(out);
        if (path.find("libtorch_cuda") != path.npos) name = "PyTorch";
        if (path.find("libtensorflow") != path.npos) name = "TensorFlow";
        // JAX starts CUDA before it loads XLA's plugin, to ask how many devices there are.
        for (const char* of_jax : {"xla_cuda", "jax_cuda", "/jaxlib/"})
          if (name.empty() && path.find(of_jax) != path.npos) name = "JAX";
        return 0;
      },
      &found);
  return found;
}

// A process that replaced itself (exec) has a capture under its number already.
std::string path_of_capture(const std::string& folder, const std::string& rank) {
  const std::string process = folder + "/" + std::to_string(getpid());
  std::string path = process + rank + ".sat";
  for (int n = 2; access(path.c_str(), F_OK) == 0; ++n)
    path = process + "." + std::to_string(n) + rank + ".sat";
  return path;
}

std::string rank_suffix() {
  for (const char* variable : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(variable);
    if (rank == nullptr || *rank == '\0') continue;
    const std::string text(rank);
    if (text.size() < 8 && text.find_first_not_of("0123456789") == std::string::npos)
      return ".rank" + text;
  }
  return "";
}

}  // namespace

Recorder::Recorder(const Settings& settings)
    : settings_(settings),
      schedule_(now_ns() + settings.delay_ms * 1'000'000,
                settings.duration_ms == 0
                    ? INT64_MAX
                    : now_ns() + (settings.delay_ms + settings.duration_ms) * 1'000'000),
      converter_(api_, code_, static_cast<uint32_t>(getpid())) {
  if (settings.lacks("small")) buffers_.all_large();
}

Recorder* Recorder::get() { return the_recorder; }

Recorder* Recorder::start(const Settings& settings) {
  if (the_recorder != nullptr || settings.folder.empty()) return the_recorder;
  // Never deleted: CUPTI's threads may call back while the process ends.
  auto* recorder = new Recorder(settings);
  std::string problem;
  if (!recorder->open(problem)) {
    leave_note(settings.folder, problem);
    return nullptr;
  }
  return the_recorder = recorder;
}

bool Recorder::open(std::string& problem) {
  trace_.framework = framework();
  // XLA updates its graphs at each launch; what others do shows in their calls.
  const bool changes_graphs = trace_.framework == "JAX" || trace_.framework == "TensorFlow";
  if (!load(settings_.cupti, changes_graphs ? kFlushesBesideChanges : 0, api_, problem))
    return false;
  if (api_.version != nullptr) api_.version(&version_);
  const bool shared = join_several_clients(api_, version_, on_callback, why_alone_);
  the_recorder = this;
  const Result registered = api_.register_callbacks(on_request, on_completed);
  if (registered != kSuccess) {
    the_recorder = nullptr;
    if (shared) api_.unsubscribe();
    problem = "CUPTI refused the capture (error " + std::to_string(registered) +
              "); another profiler may hold it: run without that";
    return false;
  }
  flushes_ = !settings_.lacks("flush");
  if (settings_.lacks("ids")) api_.set_thread_id_type = nullptr;
  if (api_.set_thread_id_type != nullptr) api_.set_thread_id_type(kThreadIdSystem);
  if (!settings_.without.empty())
    trace_.notes.push_back("recorded without " + settings_.without + " (" + kWithoutVariable + ")");
  trace_.source = "saturate capture";
  if (changes_graphs) stop_flushing();
  try {
    writer_ = std::make_unique<SatWriter>(path_of_capture(settings_.folder, rank_suffix()));
  } catch (const std::exception& e) {
    the_recorder = nullptr;
    if (shared) api_.unsubscribe();
    problem = e.what();
    return false;
  }
  trace_.notes.push_back("recorded by CUPTI " + std::to_string(version_) +
                         (shared ? " as one of several clients: kernels of graphs one by one, as a "
                                   "profiler in the program may want them"
                                 : ""));
  started_ns_ = paused_since_ns_ = counted_ns_ = now_ns();
  watch_code(shared);
  watch_program();
  api_.enable(kDevice);
  // From the first graph to the last: CUPTI 13.0 ends the program at the launch of a graph that was
  // instantiated while this kind was off. Records of pauses are not kept.
  // Without it at all CUPTI records their kernels, as of any stream.
  // Whether graphs are recorded whole is one for all clients, so not for us to say among several.
  if (!settings_.graph_nodes && !shared && !settings_.lacks("graphs")) api_.enable(kGraphTrace);
  // All the time: a sum with gaps would be none.
  follows_memory_ = settings_.memory && api_.enable(kMemory2) == kSuccess;
  switch_calls(Calls::wanted);  // also before a late start, lest CUPTI never begins to number
  if (schedule_.mode_at(started_ns_) != Mode::full) converter_.nothing_recorded_yet();
  set_mode(schedule_.mode_at(started_ns_));
  // The thread must take no signal of the program's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

// From then on CUPTI hands over what fills a buffer, and the rest at the end.
void Recorder::stop_flushing() {
  if (version_ >= kFlushesBesideChanges || !flushes_) return;
  flushes_ = false;
  trace_.notes.push_back(
      "CUPTI " + std::to_string(version_) +
      " is not asked for its records while this program runs, which changes its graphs (JAX does): "
      "killed from outside it loses what CUPTI holds, and about half of such runs end with "
      "CUDA_ERROR_LAUNCH_FAILED. With XLA_FLAGS=--xla_gpu_enable_command_buffer= in its "
      "environment "
      "none did so far (its kernels are then launched one by one), nor with CUPTI 13.5: pip "
      "install "
      "--target ~/cupti nvidia-cuda-cupti, then --cupti ~/cupti/nvidia/cu13/lib/libcupti.so.13");
}

void Recorder::watch_program() {
  if (settings_.lacks("hooks")) return;
  watch_other_profilers(api_, version_, {on_other_profiler, on_neighbour, on_other_subscriber});
  watch_endings(on_ending);
}

// Before others may subscribe: CUPTI has one client for callbacks, unless all use its newer interface.
void Recorder::watch_code(bool shared) {
  // Without hooks nobody would tell that another wants them.
  if (settings_.lacks("code") || settings_.lacks("hooks") || api_.enable_callback == nullptr)
    return;
  void* own = api_.subscriber;
  if (!shared) {
    if (api_.subscribe == nullptr || api_.unsubscribe_v1 == nullptr ||
        api_.subscribe(&own, on_callback, nullptr) != kSuccess) {
      trace_.notes.push_back("CUPTI's callbacks are another's: " + std::string(kByNames));
      return;
    }
    subscriber_ = own;
  }
  api_.enable_callback(1, own, kDomainResource, kModuleLoaded);
}

void Recorder::on_callback(void*, uint32_t domain, uint32_t callback, const void* data) {
  Recorder& r = *the_recorder;
  if (r.dead_ || r.stopped_ || domain != kDomainResource || callback != kModuleLoaded) return;
  const auto* resource = static_cast<const ResourceData*>(data);
  if (resource == nullptr || resource->module == nullptr) return;
  try {
    r.code_.add(resource->module->cubin, resource->module->bytes);
  } catch (const std::exception&) {  // no memory: that module's kernels have their names alone
  }
}

bool Recorder::leave_callbacks() noexcept {
  void* own = subscriber_.exchange(nullptr);
  if (own != nullptr) api_.unsubscribe_v1(own);
  return own != nullptr;
}

void Recorder::on_other_subscriber() {
  Recorder& r = *the_recorder;
  if (!r.leave_callbacks() || r.stopped_) return;
  const std::lock_guard lock(r.file_mutex_);
  try {
    r.trace_.notes.push_back("the program took CUPTI's callbacks in second " +
                             std::to_string((now_ns() - r.started_ns_) / 1'000'000'000) +
                             ": from then on " + kByNames);
  } catch (const std::exception&) {
    r.dead_ = true;
  }
}

void Recorder::set_mode(Mode mode) {
  const std::lock_guard lock(mode_mutex_);
  if (mode == mode_ || (mode != Mode::off && yielded_)) return;
  if (mode_ == Mode::full) {
    paused_since_ns_ = now_ns();
    full_ns_ += paused_since_ns_ - since_ns_;
    switch_kinds(false);
  }
  switch_calls(mode == Mode::off ? Calls::waits : Calls::wanted);
  mode_ = mode;
  if (mode == Mode::full) switch_kinds(true);
  since_ns_ = stretch_from_ns_ = now_ns();
  const std::lock_guard file_lock(file_mutex_);
  if (mode == Mode::full) {
    trace_.pauses.push_back({paused_since_ns_, since_ns_.load()});
    converter_.stretch_begins(since_ns_);
  } else {
    converter_.stretch_ends(paused_since_ns_);
  }
  if (mode != Mode::off) converter_.count_calls(since_ns_, INT64_MAX);
}

void Recorder::switch_kinds(bool on) {
  for (const uint32_t kind : kKinds) {
    if (kind == kConcurrentKernel && settings_.lacks("kernels")) continue;
    if ((kind == kMemcpy || kind == kMemcpyPeer || kind == kMemset) && settings_.lacks("copies"))
      continue;
    on ? api_.enable(kind) : api_.disable(kind);
  }
  if (settings_.memory) on ? api_.enable(kSynchronization) : api_.disable(kSynchronization);
}

void Recorder::switch_calls(Calls which) {
  if (settings_.lacks("calls")) return;
  for (const auto& [domain, kind, enable_api] :
       {std::tuple{kDomainRuntime, kRuntime, api_.enable_runtime_api},
        std::tuple{kDomainDriver, kDriver, api_.enable_driver_api}}) {
    if (enable_api == nullptr) {  // then all calls of the runtime, sorted out by name
      if (kind == kRuntime) which == Calls::rare ? api_.disable(kind) : api_.enable(kind);
      continue;
    }
    for (uint32_t callback = 1; callback < kMostCallbacks; ++callback) {
      const char* name = nullptr;
      if (api_.callback_name(domain, callback, &name) != kSuccess || name == nullptr) break;
      if (has(name, "ProfilerStop")) enable_api(callback, 1);
      if (!wanted_call(domain, name)) continue;
      const bool waits = which == Calls::waits && has(name, "Synchronize");
      enable_api(callback, waits || which == Calls::wanted ? 1 : 0);
    }
  }
}

void Recorder::on_request(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = nullptr, *size = 0, *max_records = 0;
  if (the_recorder->dead_) return;  // in the child of a fork also: the lock may be held for good
  const Buffer b = the_recorder->buffers_.request();
  *buffer = b.data;
  *size = b.bytes;
}

void Recorder::on_completed(void* context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  Recorder& r = *the_recorder;
  if (r.dead_) return;
  size_t dropped = 0;
  if (r.api_.dropped_records(context, stream, &dropped) == kSuccess)
    r.dropped_ += static_cast<int64_t>(dropped);
  r.buffers_.completed(buffer, valid);
}

void Recorder::on_other_profiler() { the_recorder->yield(); }
void Recorder::on_neighbour() { the_recorder->note_neighbour(); }

void Recorder::on_ending(Ending ending, int signal) { the_recorder->last_words(ending, signal); }

void Recorder::run() noexcept {
  writer_thread_ = gettid();
  for (bool first = true; !stopped_ && !dead_; first = false) {
    const int64_t now = now_ns();
    const int64_t until =
        std::min(now + (first ? kFirstTurnNs : kTurnNs), schedule_.next_change(now));
    wake_.wait(until - now);
    if (ending_ != 0) return say_last_words();
    if (stopped_ || dead_) return;
    in_turn_ = true;
    try {
      if (!stopped_) turn();
    } catch (const std::exception&) {
      dead_ = true;
    }
    in_turn_ = false;
  }
}

void Recorder::turn() {
  const int64_t now = now_ns();
  if (yielded_) return;
  watch_program();
  if (failed_) {  // CUPTI still wants its buffers, as long as something is on
    set_mode(Mode::off);
    if (flushes_) api_.flush_all(0);
    return write_filled(now);
  }
  const bool over =
      mode_ != Mode::off && (schedule_.mode_at(now) != mode_ ||
                             schedule_.enough(now - stretch_from_ns_, launches_of_stretch()));
  const Mode before = mode_;
  const int64_t from = stretch_from_ns_;
  if (mode_ == Mode::full && schedule_.mode_at(now) != mode_) set_mode(Mode::off);
  // Holds none of our locks: CUPTI calls on_completed inside.
  if (flushes_) api_.flush_all(0);
  write_filled(flushes_ ? now - kDisorderNs : started_ns_);
  if (flushes_) {
    const std::lock_guard lock(file_mutex_);
    for (const CallCount& c : converter_.counts())
      if (has(c.name, "GraphExec") && c.count > 0) stop_flushing();
  }
  limit_memory(now);
  if (over && !yielded_) stretch_done(before, now - from);
  set_mode(schedule_.mode_at(now_ns()));
}

// As far as CUPTI has handed them over.
int64_t Recorder::launches_of_stretch() {
  const std::lock_guard lock(file_mutex_);
  int64_t launches = 0;
  for (const CallCount& c : converter_.counts()) launches += has(c.name, "Launch") ? c.count : 0;
  return launches;
}

// Where memory is taken and given back so often that following it costs too much, it ends.
void Recorder::limit_memory(int64_t now) {
  {
    const std::lock_guard lock(file_mutex_);
    const int64_t all = converter_.allocations(), passed_ns = now - counted_ns_;
    if (passed_ns < kCountNs) return;
    const bool often = (all - allocations_) * 1'000'000'000 > kMostAllocationsPerS * passed_ns;
    allocations_ = all;
    counted_ns_ = now;
    if (!often || !follows_memory_) return;
    follows_memory_ = false;
    if (yielded_) return;
    trace_.notes.push_back("the program takes and gives back memory of the device over " +
                           std::to_string(kMostAllocationsPerS) +
                           " times a second: its own account of it ends with second " +
                           std::to_string((now - started_ns_) / 1'000'000'000));
  }
  api_.disable(kMemory2);
}

// What the stretch that just ended says: how fast the program was, and how to go on.
void Recorder::stretch_done(Mode mode, int64_t length_ns) {
  const int64_t launches = launches_of_stretch();
  const std::lock_guard lock(file_mutex_);
  const std::vector<CallCount>& counts = converter_.counts();
  const auto rate_of_light = [&] {
    for (const CallCount& c : counts) {
      if (c.domain == light_.domain && c.callback == light_.callback) return c.rate();
    }
    return 0.0;
  };
  if (mode == Mode::light) {
    light_rate_ = rate_of_light();
  } else {
    const int64_t cost_ns = converter_.recording_cost_ns();
    schedule_.update(cost_ns, launches, length_ns, records_);
    cost_share_ = static_cast<double>(cost_ns) / static_cast<double>(length_ns);
    launches_per_s_ = 1e9 * static_cast<double>(launches) / static_cast<double>(length_ns);
    const double rate = rate_of_light();
    if (light_rate_ > 0 && rate > 0 && slowdowns_.size() < kMostSlowdowns) {
      slowdowns_.push_back(light_rate_ / rate);
      std::vector<double> sorted = slowdowns_;
      std::nth_element(sorted.begin(),
                       sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2),
                       sorted.end());
      // Below 1 is chance.
      trace_.slowdown = std::clamp(sorted[sorted.size() / 2], 1.0, 100.0);
    }
    light_rate_ = 0;
    // The rarest call that is made steadily enough to give a rate.
    const CallCount* rarest = nullptr;
    for (const CallCount& c : counts) {
      const bool steady = wanted_pace(c.name);
      if (steady && c.count >= kLeastPace && (rarest == nullptr || c.count < rarest->count))
        rarest = &c;
    }
    light_ = rarest == nullptr ? CallCount{} : *rarest;
  }
  stretch_from_ns_ = now_ns();
  converter_.count_calls(stretch_from_ns_, INT64_MAX);
}

void Recorder::write_filled(int64_t complete_ns) {
  const std::lock_guard lock(file_mutex_);
  if (dead_) return;
  if (!writer_) return buffers_.give_back(buffers_.take_filled());
  const WithoutSizeSignal guard;
  try {
    for (std::vector<Buffer> filled = buffers_.take_filled(); !filled.empty();
         filled = buffers_.take_filled()) {
      for (const Buffer& b : filled) {
        Activity* record = nullptr;
        while (api_.next_record(b.data, b.bytes, &record) == kSuccess)
          converter_.add(*record, trace_);
      }
      buffers_.give_back(filled);
    }
    converter_.complete(trace_);
    records_ += static_cast<int64_t>(trace_.records());
    writer_->write(trace_, complete_ns);
    trace_.ops.clear();
    trace_.calls.clear();
    trace_.spans.clear();
    trace_.memory.clear();
  } catch (const std::exception& e) {  // the disk is full, say: the program goes on without us
    writer_->abandon("recording ended in second " +
                     std::to_string((now_ns() - started_ns_) / 1'000'000'000) + ": " + e.what());
    writer_.reset();
    failed_ = true;
  }
}

// All that CUPTI has. What is not finished comes without times, and with it what follows.
void Recorder::take_the_rest() {
  api_.flush_all(0);
  write_filled(now_ns() - kDisorderNs);
  int64_t untimed = 0;
  {
    const std::lock_guard lock(file_mutex_);
    untimed = converter_.untimed();
  }
  api_.flush_all(kFlushForced);
  write_filled(now_ns() - kDisorderNs);
  const std::lock_guard lock(file_mutex_);
  unfinished_ = converter_.untimed() - untimed;
}

void Recorder::close(const std::string& note) {
  const std::lock_guard lock(file_mutex_);
  if (!writer_ || dead_) return;
  const WithoutSizeSignal guard;
  try {
    const int64_t now = now_ns(), all = std::max<int64_t>(1, now - started_ns_);
    if (full_ns_ > 0 && !yielded_ && now - paused_since_ns_ > kTurnNs)
      trace_.pauses.push_back({paused_since_ns_, now});
    const double share = static_cast<double>(full_ns_) / static_cast<double>(all);
    std::string cost = "recorded " + std::to_string(std::lround(100 * share)) + "% of " +
                       std::to_string(all / 1'000'000'000) + "." +
                       std::to_string(all / 100'000'000 % 10) + " s";
    if (!slowdowns_.empty())
      cost += "; meanwhile the program was " +
              std::to_string(std::lround(100 * (trace_.slowdown - 1))) +
              "% slower than just before (median of " + std::to_string(slowdowns_.size()) +
              " windows, by the pace of " + light_.name + ")";
    trace_.notes.push_back(cost);
    const double stays = Schedule::kStayingCostS * launches_per_s_,
                 recorded = share * std::max(0.0, cost_share_ - stays);
    if (std::lround(1000 * (stays + recorded)) >= 10)
      trace_.notes.push_back("predicted cost of watching: " + tenths(100 * (stays + recorded)) +
                             "% of the run, of which recording " + tenths(100 * recorded) +
                             "% and what CUPTI leaves in each launch to the end of the process " +
                             tenths(100 * stays) + "% (" +
                             std::to_string(std::lround(launches_per_s_)) +
                             " launches a second, 0.7 us each)" +
                             (stays + recorded > Schedule::kAim
                                  ? "; no schedule brings that below " + tenths(100 * stays) +
                                        "%: watch such a program for a short run"
                                  : ""));
    if (!note.empty()) trace_.notes.push_back(note);
    if (unfinished_ > 0)
      trace_.notes.push_back("the program ended while the device had " +
                             std::to_string(unfinished_) +
                             " operations to do, which are not in the capture");
    if (converter_.unnumbered() > 0)
      trace_.notes.push_back("CUPTI gave " + std::to_string(converter_.unnumbered()) +
                             " records the number of others: what issued them is not known");
    trace_.dropped = dropped_ + converter_.untimed() - unfinished_ + buffers_.wasted_bytes() / 96;
    writer_->write(trace_, now);
    writer_->close(trace_);
    writer_.reset();
  } catch (const std::exception&) {
    dead_ = true;
  }
}

void Recorder::finish() noexcept {
  if (dead_ || stopped_.exchange(true)) return;
  wake_.ring();
  // CUPTI goes away after us: no call of the writer may be under way then.
  for (int i = 0; i < 1000 && in_turn_; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!yielded_) {
    set_mode(Mode::off);
    take_the_rest();
  }
  write_filled(now_ns() - kDisorderNs);
  close({});
}

void Recorder::last_words(Ending ending, int signal) noexcept {
  if (dead_ || stopped_ || gettid() == writer_thread_) return;
  ending_ = static_cast<int>(ending) << kEndingShift | signal;
  wake_.ring();
  const int64_t until = now_ns() + kPatienceNs;
  for (int64_t now = now_ns(); !said_.rung() && now < until; now = now_ns())
    said_.wait(until - now);
}

// CUPTI is asked for no more than it needs: a thread may have stopped anywhere in it.
void Recorder::say_last_words() noexcept {
  if (dead_ || stopped_.exchange(true)) return;
  const int ending = ending_, signal = ending & ((1 << kEndingShift) - 1);
  try {
    {
      const std::lock_guard lock(mode_mutex_);
      if (mode_ == Mode::full) {
        paused_since_ns_ = now_ns();
        full_ns_ += paused_since_ns_ - since_ns_;
      }
    }
    if (!yielded_) take_the_rest();
    std::string note;
    if (ending >> kEndingShift == static_cast<int>(Ending::exec))
      note = "the process became another program (exec), which is recorded apart if it uses CUDA";
    else if (signal != 0)
      note = "the program was ended by signal " + std::to_string(signal) + " (" +
             strsignal(signal) + ")";
    close(note);
  } catch (const std::exception&) {
    dead_ = true;
  }
  said_.ring();
}

void Recorder::yield() noexcept {
  if (dead_ || stopped_ || yielded_.exchange(true)) return;
  leave_callbacks();
  set_mode(Mode::off);
  switch_calls(Calls::rare);
  api_.disable(kGraphTrace);
  api_.disable(kDevice);
  if (settings_.memory) api_.disable(kMemory2);
  if (api_.set_thread_id_type != nullptr) api_.set_thread_id_type(kThreadIdDefault);
  // With every buffer back the other finds CUPTI as if nobody had been there.
  api_.flush_all(kFlushForced);
  if (api_.unsubscribe != nullptr) api_.unsubscribe();
  const int64_t now = now_ns();
  write_filled(now - kDisorderNs);
  const std::lock_guard lock(file_mutex_);
  try {
    trace_.notes.push_back(
        "capture lost from second " + std::to_string((now - started_ns_) / 1'000'000'000) +
        " on: the program started a profiler of its own (torch.profiler, say), and CUPTI has one "
        "at a time" +
        (version_ < kSeveralClients
             ? "; "
             : " unless all use its newer interface (" +
                   (why_alone_.empty() ? std::string("this one does not") : why_alone_) + "); ") +
        "run it without that profiler to see all");
    if (writer_) writer_->write(trace_, now);
  } catch (const std::exception&) {
    dead_ = true;
  }
}

void Recorder::note_neighbour() noexcept {
  if (dead_ || stopped_ || neighbour_.exchange(true)) return;
  const std::lock_guard lock(file_mutex_);
  try {
    trace_.notes.push_back("the program started a profiler of its own in second " +
                           std::to_string((now_ns() - started_ns_) / 1'000'000'000) +
                           ", which recorded beside this capture and slows the program as well");
  } catch (const std::exception&) {
    dead_ = true;
  }
}

void Recorder::before_fork() noexcept { file_mutex_.lock(); }
void Recorder::after_fork_in_parent() noexcept { file_mutex_.unlock(); }
void Recorder::after_fork_in_child() noexcept {
  dead_ = true;
  subscriber_ = nullptr;  // the parent's
  forget_endings();
  file_mutex_.unlock();
}

}  // namespace saturate::observe::cupti
