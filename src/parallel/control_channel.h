// SPDX-License-Identifier: Apache-2.0
// TCP star around rank 0 beside the real transport: small host-side collectives, and the news that
// a rank has failed, which reaches all ranks even when their main threads are stuck inside a
// collective.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "base/exit_code.h"
#include "parallel/activity.h"
#include "parallel/rendezvous.h"
#include "runtime/device.h"

namespace saturate::parallel {

enum class ReduceOp { sum, max };

// A process, for those on its host: `place` is a hash of what tells one booted system, and one
// container in it, from another.
struct ProcessId {
  uint64_t place = 0;
  int32_t pid = 0;  // 0: not known
  static ProcessId own();
  // Ends the process if it runs this program here; one of another host is left alone.
  void kill_if_here() const;
};

// The seconds that the environment variable SATURATE_HEARTBEAT gives, for ranks that are stopped on
// purpose, such as in a debugger; else 5. Negative for what is no number: ControlChannel refuses it.
double heartbeat_limit_s();

struct ControlOptions {
  double connect_timeout_s = 120;
  DeviceKind device = DeviceKind::cpu;  // what this rank trains on; equal on all
  // A rank without a sign of life for so long is lost; processes that end are noticed at once. The
  // watcher is a thread of its own and does nothing that blocks, so a process is silent only when it
  // is stopped, its host stands still or the network is cut, whatever its other threads do. Five
  // seconds are ten beats: longer than schedulers, garbage of page tables and lost packets take, and
  // short enough that with relay, abort and grace all have ended in 10 s.
  double heartbeat_s = heartbeat_limit_s();
  // Called on the watcher thread, once, with "rank 3 failed at step 120 while training: cause".
  // Without one the line goes to standard error and the process ends with the failure's exit code.
  std::function<void(const std::string& line)> on_failure = {};
};

// Where a failure was born. An `echo` (a collective that broke) is held back for a second, so that
// the report of the rank that broke it wins.
enum class FailureOrigin : uint32_t { here, echo };

// activity() and report_failure() may be used by any thread, the rest by one at a time.
class ControlChannel {
 public:
  // Collective. Errors: see meet().
  static std::unique_ptr<ControlChannel> open(const LaunchInfo& launch, ControlOptions options,
                                              const Exchange& exchange = {});
  // Without close() before, the other ranks take this one for dead.
  ~ControlChannel();

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // The address of this host that the other ranks reach, as numbers.
  std::string local_address() const { return local_address_of(peers_.front()->socket); }

  // Collective and blocking; all data passes through rank 0. Sums are made in the order of ranks,
  // so results are bitwise equal everywhere and every time. dtype f32 or f64. Errors: collective
  // (ranks make different calls, or one has left).
  void broadcast(void* data, int64_t bytes, int root);
  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op);

  // Where failures of this rank are reported to have happened.
  Activity& activity() noexcept { return activity_; }

  // Tells all ranks; each prints the line and ends with `exit_code`, this one too, all within a few
  // seconds. Does not return unless options.on_failure does.
  void report_failure(const std::string& cause, FailureOrigin origin, int exit_code = kExitMachine);

  // What the watcher does for a transport: `health` runs about twice a second and returns the cause
  // of a failure or ""; `abort` runs once before the process ends, for at most 2 s. Null functions
  // clear.
  void set_guard(std::function<std::string()> health, std::function<void()> abort);

  // Collective: returns when all ranks have called it. Afterwards nothing is watched any more.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int rank = 0;
    Descriptor socket;
    std::mutex sending;  // one frame at a time
    FrameReader reader;  // this and the next four: watcher only
    int silent_ticks = 0;
    bool closed = false;
    Whereabouts at;  // by its last heartbeat, as the next
    ProcessId process;
    std::deque<Frame> inbox;  // this and the next: guarded by mutex_
    bool left = false;        // has said goodbye; written by the watcher only
  };
  struct Failure {
    int rank = 0;
    int64_t step = 0;
    FailureOrigin origin = FailureOrigin::here;
    int exit_code = kExitMachine;
    std::string where, cause;
    ProcessId stopped = {};  // of a rank that is silent but may live
  };

  ControlChannel(const LaunchInfo& launch, ControlOptions options, std::vector<Descriptor> sockets);
  Peer& peer(int rank);
  void send(Peer& to, const void* data, int64_t bytes);
  void receive(Peer& from, void* data, int64_t bytes);
  [[noreturn]] void await_end(std::unique_lock<std::mutex>& lock);

  void watch();
  int poll_timeout_ms(Clock::time_point next_tick) const;
  void read_from(Peer& from);
  void handle(Peer& from, Frame frame);
  void tick();
  void beat(Peer& to);
  void look_for_stall();
  Failure loss_of(const Peer& lost, std::string cause);
  void consider(Failure failure, Clock::duration hold);
  void conclude();
  void relay(const Failure& failure);
  void run_abort();
  void wake();

  const int rank_, size_;
  const ControlOptions options_;
  const std::chrono::milliseconds tick_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Descriptor wakeup_;
  Activity activity_;
  std::atomic<bool> cancelled_{false};  // ends blocked sends
  std::atomic<bool> stop_{false};
  uint32_t calls_ = 0;  // collectives so far; the same on all ranks

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> reported_;  // by this rank, for the watcher
  std::optional<std::string> end_;   // set when on_failure has returned

  std::optional<Failure> verdict_;  // watcher only, with its deadline
  Clock::time_point verdict_at_;
  StallWatch stalls_;  // of rank 0

  std::mutex guard_mutex_;
  std::function<std::string()> health_;
  std::function<void()> abort_;
  std::thread watcher_;
};

}  // namespace saturate::parallel
