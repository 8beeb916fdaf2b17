// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/recorder.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <tuple>

#include "observe/capture/cupti_library.h"
#include "observe/capture/rival.h"

namespace saturate::observe::cupti {
namespace {

constexpr auto kTurn = std::chrono::milliseconds(250);
// Records may come this much after their end: a buffer is handed over when all in it is complete.
constexpr int64_t kDisorderNs = 2'000'000'000;
constexpr uint32_t kMostCallbacks = 2048;
constexpr uint32_t kKinds[] = {kDevice, kConcurrentKernel, kMemcpy,    kMemcpyPeer,
                               kMemset, kOverhead,         kGraphTrace};

Recorder* the_recorder = nullptr;

// CUPTI's clock.
int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void leave_note(const std::string& folder, const std::string& problem) {
  const std::string path = folder + "/" + std::to_string(getpid()) + ".failed";
  if (std::FILE* file = std::fopen(path.c_str(), "w")) {
    std::fprintf(file, "%s\n", problem.c_str());
    std::fclose(file);
  }
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
    : settings_(settings), converter_(api_, static_cast<uint32_t>(getpid())) {}

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
  if (!load(settings_.cupti, api_, problem)) return false;
  uint32_t version = 0;
  if (api_.version != nullptr) api_.version(&version);
  the_recorder = this;
  const Result registered = api_.register_callbacks(on_request, on_completed);
  if (registered != kSuccess) {
    the_recorder = nullptr;
    problem = "CUPTI refused the capture (error " + std::to_string(registered) +
              "); another profiler may hold it: run without that";
    return false;
  }
  if (api_.set_thread_id_type != nullptr) api_.set_thread_id_type(kThreadIdSystem);
  trace_.source = "saturate capture";
  trace_.framework = "";
  writer_ = std::make_unique<SatWriter>(settings_.folder + "/" + std::to_string(getpid()) +
                                        rank_suffix() + ".sat");
  trace_.notes.push_back("recorded by CUPTI " + std::to_string(version));
  started_ns_ = now_ns();
  watch_for_rivals(api_, on_rival);
  switch_kinds(true);
  // The thread must take no signal of the program's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  thread_.detach();
  return true;
}

void Recorder::switch_kinds(bool on) {
  const std::lock_guard lock(switch_mutex_);
  if (kinds_on_ == on || (on && yielded_)) return;
  kinds_on_ = on;
  for (const uint32_t kind : kKinds) on ? api_.enable(kind) : api_.disable(kind);
  for (const auto& [domain, kind, enable_api] :
       {std::tuple{kDomainRuntime, kRuntime, api_.enable_runtime_api},
        std::tuple{kDomainDriver, kDriver, api_.enable_driver_api}}) {
    if (enable_api == nullptr) {  // then all calls of the runtime, sorted out by name
      if (kind == kRuntime) on ? api_.enable(kind) : api_.disable(kind);
      continue;
    }
    for (uint32_t callback = 1; callback < kMostCallbacks; ++callback) {
      const char* name = nullptr;
      if (api_.callback_name(domain, callback, &name) != kSuccess || name == nullptr) break;
      if (wanted_call(domain, name)) enable_api(callback, on ? 1 : 0);
    }
  }
}

void Recorder::on_request(uint8_t** buffer, size_t* size, size_t* max_records) {
  const Buffer b = the_recorder->buffers_.request();
  *buffer = b.data;
  *size = b.bytes;
  *max_records = 0;
}

void Recorder::on_completed(void* context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  Recorder& r = *the_recorder;
  size_t dropped = 0;
  if (r.api_.dropped_records(context, stream, &dropped) == kSuccess)
    r.dropped_ += static_cast<int64_t>(dropped);
  r.buffers_.completed(buffer, valid);
}

void Recorder::on_rival() { the_recorder->yield(); }

void Recorder::run() noexcept {
  while (!stopped_) {
    {
      std::unique_lock lock(wake_mutex_);
      wake_.wait_for(lock, kTurn, [&] { return stopped_.load(); });
    }
    if (stopped_ || dead_) return;
    if (!yielded_) watch_for_rivals(api_, on_rival);
    turn(!yielded_);
  }
}

void Recorder::turn(bool flush) {
  const int64_t before = now_ns();
  if (flush) api_.flush_all(0);  // holds none of our locks: CUPTI calls on_completed inside
  write_filled(before - kDisorderNs);
}

void Recorder::write_filled(int64_t complete_ns) {
  const std::lock_guard lock(file_mutex_);
  if (!writer_ || dead_) return;
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
    writer_->write(trace_, complete_ns);
    trace_.ops.clear();
    trace_.calls.clear();
    trace_.spans.clear();
  } catch (const std::exception& e) {  // the disk is full, say: the program goes on without us
    dead_ = true;
    leave_note(settings_.folder, e.what());
  }
}

void Recorder::close(const char* last_note) {
  const std::lock_guard lock(file_mutex_);
  if (!writer_ || dead_) return;
  try {
    if (last_note != nullptr) trace_.notes.push_back(last_note);
    trace_.dropped = dropped_ + converter_.untimed() + buffers_.wasted_bytes() / 96;
    writer_->write(trace_, now_ns());
    writer_->close(trace_);
    writer_.reset();
  } catch (const std::exception&) {
    dead_ = true;
  }
}

void Recorder::finish() noexcept {
  if (dead_ || stopped_.exchange(true)) return;
  wake_.notify_all();
  if (!yielded_) api_.flush_all(kFlushForced);
  write_filled(now_ns() - kDisorderNs);
  close(nullptr);
}

void Recorder::yield() noexcept {
  if (dead_ || stopped_ || yielded_.exchange(true)) return;
  switch_kinds(false);
  if (api_.set_thread_id_type != nullptr) api_.set_thread_id_type(kThreadIdDefault);
  // With every buffer back the other finds CUPTI as if nobody had been there.
  api_.flush_all(kFlushForced);
  const int64_t now = now_ns();
  write_filled(now - kDisorderNs);
  const std::lock_guard lock(file_mutex_);
  try {
    trace_.notes.push_back("capture lost from second " +
                           std::to_string((now - started_ns_) / 1'000'000'000) +
                           " on: the program started a profiler of its own (torch.profiler, say), "
                           "and CUPTI serves one "
                           "at a time; run it without that profiler to see all");
  } catch (const std::exception&) {
  }
}

void Recorder::before_fork() noexcept { file_mutex_.lock(); }
void Recorder::after_fork_in_parent() noexcept { file_mutex_.unlock(); }
void Recorder::after_fork_in_child() noexcept {
  dead_ = true;
  file_mutex_.unlock();
}

}  // namespace saturate::observe::cupti
