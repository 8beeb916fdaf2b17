// SPDX-License-Identifier: Apache-2.0
#include "runtime/parallel_for.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/long_loops.h"
#include "runtime/start_threads.h"

namespace saturate {
namespace {

int default_threads() {
  if (const char* text = std::getenv("SATURATE_THREADS"); text != nullptr && *text != '\0') {
    int n = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, n);
    if (error != std::errc() || rest != end || n < 1 || n > kMostCpuThreads)
      throw Error(Errc::invalid_argument, "threads",
                  std::string("SATURATE_THREADS=") + text + ": give a number from 1 to " +
                      std::to_string(kMostCpuThreads) + ", or unset it");
    return n;
  }
  return std::clamp(allowed_cpus(), 1, kMostCpuThreads);
}

std::atomic<int> g_threads{0};  // 0: not decided yet
thread_local bool t_inside = false;
thread_local bool t_shares_long = false;

// Workers sleep until a job's number changes and take chunks as the caller does, so that nobody waits for a
// thread that has not come to run: who is last to end a chunk wakes the caller. They spin briefly first:
// the kernels of one step follow each other within microseconds.
class Pool {
 public:
  explicit Pool(int threads) {
    start_threads(
        workers_, threads - 1, "compute", [this](int) { work(); }, [this] { stop(); });
  }
  ~Pool() {
    stop();
    for (std::thread& t : workers_) t.join();
  }

  void run(int chunks, const std::function<void(int)>& chunk) {
    const std::lock_guard one_caller(caller_);
    const auto job = std::make_shared<Job>(&chunk, chunks);
    {
      const std::lock_guard lock(mutex_);
      job_ = job;
      ticket_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
    take_chunks(*job);
    for (int spin = 0; spin < kSpins && !job->is_done(); ++spin) pause();
    if (!job->is_done()) {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [&] { return job->is_done(); });
    }
    if (job->error) std::rethrow_exception(job->error);
  }

 private:
  // Whoever holds it may ask for a chunk; the caller's function lives until all of them are done.
  struct Job {
    Job(const std::function<void(int)>* f, int n) : chunk(f), chunks(n), left(n) {}
    bool is_done() const { return left.load(std::memory_order_acquire) == 0; }
    const std::function<void(int)>* const chunk;
    const int chunks;
    std::atomic<int> next{0}, left;
    std::exception_ptr error;  // the first; under the pool's mutex while chunks are left
  };

  static constexpr int kSpins = 4000;  // about 50 us: a step's kernels follow closer than that
  static void pause() { __builtin_ia32_pause(); }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      ticket_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
  }

  void take_chunks(Job& job) {
    for (;;) {
      const int index = job.next.fetch_add(1, std::memory_order_relaxed);
      if (index >= job.chunks) return;
      t_inside = true;
      try {
        (*job.chunk)(index);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!job.error) job.error = std::current_exception();
      }
      t_inside = false;
      if (job.left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex_);  // so that the caller is before its check or waiting
        done_.notify_one();
      }
    }
  }

  void work() {
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && ticket_.load(std::memory_order_acquire) == seen; ++spin)
        pause();
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        start_.wait(lock, [&] { return ticket_.load(std::memory_order_acquire) != seen; });
        seen = ticket_.load(std::memory_order_acquire);
        if (stop_) return;
        job = job_;
      }
      take_chunks(*job);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex caller_, mutex_;
  std::condition_variable start_, done_;
  std::atomic<uint64_t> ticket_{0};
  std::shared_ptr<Job> job_;  // the newest
  bool stop_ = false;
};

std::mutex g_pool_mutex;

// After a fork the threads are the parent's: the child cannot end the copy, and makes its own.
struct PoolOfProcess {
  ~PoolOfProcess() { leave_parents(); }
  void leave_parents() {
    if (process != ::getpid()) static_cast<void>(pool.release());
  }
  std::unique_ptr<Pool> pool;
  pid_t process = 0;
};
PoolOfProcess g_pool;

Pool& pool() {
  const std::lock_guard lock(g_pool_mutex);
  g_pool.leave_parents();
  if (!g_pool.pool) {
    g_pool.pool = std::make_unique<Pool>(cpu_threads());
    g_pool.process = ::getpid();
  }
  return *g_pool.pool;
}

}  // namespace

int cpu_threads() {
  int n = g_threads.load(std::memory_order_relaxed);
  if (n == 0) {
    n = default_threads();
    g_threads.store(n, std::memory_order_relaxed);
  }
  return n;
}

void set_cpu_threads(int threads) {
  const std::lock_guard lock(g_pool_mutex);
  g_threads.store(std::clamp(threads, 1, kMostCpuThreads), std::memory_order_relaxed);
  g_pool.leave_parents();
  g_pool.pool.reset();
}

InOneThread::InOneThread() noexcept : before_(std::exchange(t_inside, true)) {}
InOneThread::~InOneThread() { t_inside = before_; }

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

LongLoopsShared::LongLoopsShared() noexcept : before_(std::exchange(t_shares_long, true)) {}
LongLoopsShared::~LongLoopsShared() { t_shares_long = before_; }

void parallel_for_long(int64_t count, int64_t grain,
                       const std::function<void(int64_t, int64_t)>& body) {
  struct Opened {  // for this loop alone: what runs inside it runs in its thread
    const bool inside = t_inside, shares = t_shares_long;
    Opened() { t_inside = inside && !shares, t_shares_long = false; }
    ~Opened() { t_inside = inside, t_shares_long = shares; }
  } const opened;
  parallel_for(count, grain, body);
}

int threads_here() { return t_inside ? 1 : cpu_threads(); }

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t chunks =
      std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, threads_here());
  if (chunks == 1) {
    body(0, count);
    return;
  }
  const int64_t size = (count + chunks - 1) / chunks;
  pool().run(static_cast<int>(chunks), [&](int i) {
    const int64_t begin = i * size;
    const int64_t end = std::min(count, begin + size);
    if (begin < end) body(begin, end);
  });
}

}  // namespace saturate
