// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "observe/capture/buffers.h"
#include "observe/capture/converter.h"
#include "observe/capture/cupti_abi.h"
#include "observe/capture/doorbell.h"
#include "observe/capture/kernel_code.h"
#include "observe/capture/program_end.h"
#include "observe/capture/schedule.h"
#include "observe/capture/settings.h"
#include "observe/read/sat_writer.h"
#include "observe/trace/trace.h"

namespace saturate::observe::cupti {

// Records one process by CUPTI's activity interface into one .sat file, from a thread of its own.
// The process has one for its whole life: CUPTI calls back without an argument of ours.
//
// Memory is constant: Buffers, and the records of one turn of the writer. Ten times a second what
// CUPTI hands over goes to the file, so that a process that ends without notice loses no more than
// that, and what lies in a buffer with work that the device has not finished. One that ends by
// _exit, exec, or a signal that it has left alone, still writes all that is finished.
// While Schedule says off, graphs, waits and with `memory` allocations are recorded, before the
// first window and by a CUPTI that cannot choose all calls; allocations alone are kept. Light
// stretches beside the full ones, with calls recorded, show how much slower the device's records
// make the program. Nothing is thrown: a failure ends the capture and is reported in the file or by
// status().
class Recorder {
 public:
  // Null when nothing is to be captured or CUPTI cannot be had; the reason then lies in the folder
  // as <pid>.failed, for the launcher to show.
  static Recorder* start(const Settings& settings);
  static Recorder* get();

  // At exit of the process: everything that CUPTI has, then the end of the file.
  void finish() noexcept;
  // Where the process ends without that, a signal handler perhaps: has the writer do it, and waits
  // for kPatienceNs at most, since what this thread was doing may keep the writer from it.
  void last_words(Ending ending, int signal) noexcept;
  // Another client in this process is about to take CUPTI: hands over all that is recorded and
  // touches it no more. Safe for any thread, more than once.
  void yield() noexcept;
  // Another is about to use it beside us, which CUPTI allows. Safe for any thread.
  void note_neighbour() noexcept;
  // Gives back CUPTI's callbacks, if we have them: kernels that are loaded from then on are known by
  // their names alone. Safe for any thread, more than once; returns whether we had them.
  bool leave_callbacks() noexcept;

  // Around fork(): the child has no threads and must not touch the file.
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

 private:
  explicit Recorder(const Settings& settings);
  static void on_request(uint8_t** buffer, size_t* size, size_t* max_records);
  static void on_completed(void* context, uint32_t stream, uint8_t* buffer, size_t, size_t valid);

  static void on_other_profiler();
  static void on_neighbour();
  static void on_other_subscriber();
  static void on_ending(Ending ending, int signal);
  static void on_callback(void*, uint32_t domain, uint32_t callback, const void* data);

  bool open(std::string& problem);
  void watch_program();
  void watch_code(bool shared);
  void stop_flushing();
  void set_mode(Mode mode);
  void switch_kinds(bool on);
  // CUPTI numbers calls and operations while some call is recorded, and never again once the last
  // one was switched off, for us or whoever comes after us: one that loops do not make stays. Waits
  // stay in pauses, for one may be under way when a window begins.
  enum class Calls : uint8_t { rare, waits, wanted };
  void switch_calls(Calls which);
  void run() noexcept;
  void turn();
  void say_last_words() noexcept;
  void take_the_rest();
  void limit_memory(int64_t now);
  int64_t launches_of_stretch();
  void stretch_done(Mode mode, int64_t length_ns);
  void write_filled(int64_t complete_ns);
  void close(const std::string& note);

  Settings settings_;
  Api api_;
  uint32_t version_ = 0;   // of CUPTI
  std::string why_alone_;  // though CUPTI can have several clients
  std::atomic<bool> neighbour_{false};
  Buffers buffers_;
  Schedule schedule_;
  KernelCode code_;
  std::atomic<void*> subscriber_{nullptr};  // our own, of CUPTI's one
  std::mutex file_mutex_;                   // of what follows, up to the next mutex
  Converter converter_;
  Trace trace_;
  std::unique_ptr<SatWriter> writer_;
  int64_t records_ = 0;
  bool flushes_ = true;  // while the program runs; of the writer alone
  bool follows_memory_ = false;
  int64_t allocations_ = 0, counted_ns_ = 0;  // when limit_memory() checked last
  std::mutex mode_mutex_;                     // of the next ones, never held while file_mutex_ is
  std::atomic<Mode> mode_{Mode::off};
  std::atomic<int64_t> since_ns_{0}, stretch_from_ns_{0};  // of the mode
  int64_t paused_since_ns_ = 0;                            // the end of the last full recording
  int64_t full_ns_ = 0;    // time in full mode, without the current stretch
  CallCount light_;        // the call that is counted in light mode
  double light_rate_ = 0;  // of its calls in the last light stretch, 0: none yet
  double launches_per_s_ = 0, cost_share_ = 0;  // in the last full stretch
  std::vector<double> slowdowns_;
  std::atomic<bool> stopped_{false}, yielded_{false}, failed_{false}, dead_{false}, in_turn_{false};
  std::atomic<int64_t> dropped_{0};
  int64_t unfinished_ = 0;      // operations, when the process ended
  std::atomic<int> ending_{0};  // and signal, once the process ends
  std::atomic<pid_t> writer_thread_{0};
  Doorbell wake_, said_;  // the writer; that it has written its last
  int64_t started_ns_ = 0;
};

}  // namespace saturate::observe::cupti
