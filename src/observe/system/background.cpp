// SPDX-License-Identifier: Apache-2.0
#include "observe/system/background.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace saturate::observe {

struct BackgroundSampler::State {
  State(Sampler s, double seconds) : sampler(std::move(s)), interval_s(seconds) {}

  void run() {
    double wait_s = std::min(interval_s, 0.25);
    std::unique_lock lock(mutex);
    while (!stop) {
      if (!paused) {
        lock.unlock();
        Snapshot s = sampler.take();
        lock.lock();
        newest = std::move(s);
      }
      const double interval = interval_s;
      const bool was_paused = paused;
      changed.wait_for(lock, std::chrono::duration<double>(wait_s),
                       [&] { return stop || interval_s != interval || paused != was_paused; });
      wait_s = interval_s;
    }
    done = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  Sampler sampler;  // of the thread alone
  double interval_s;
  bool paused = false, stop = false, done = false;
  std::optional<Snapshot> newest;
};

BackgroundSampler::BackgroundSampler(Sampler sampler, double interval_s)
    : state_(std::make_shared<State>(std::move(sampler), interval_s)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([state = state_] { state->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BackgroundSampler::~BackgroundSampler() { stop(1); }

void BackgroundSampler::set(double interval_s, bool paused) {
  const std::lock_guard lock(state_->mutex);
  if (state_->interval_s == interval_s && state_->paused == paused) return;
  state_->interval_s = interval_s;
  state_->paused = paused;
  state_->changed.notify_all();
}

std::optional<Snapshot> BackgroundSampler::newest() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->newest, std::nullopt);
}

bool BackgroundSampler::stop(double patience_s) {
  if (!thread_.joinable()) return true;
  bool done = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->stop = true;
    state_->changed.notify_all();
    done = state_->changed.wait_for(lock, std::chrono::duration<double>(patience_s),
                                    [&] { return state_->done; });
  }
  if (done) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return done;
}

}  // namespace saturate::observe
