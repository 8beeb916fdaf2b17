// SPDX-License-Identifier: Apache-2.0
// The watcher thread of a control channel: reads all connections, sends heartbeats, and ends the
// process when a rank has failed.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>

#include "parallel/control_channel.h"

namespace saturate::parallel {
namespace {

using std::chrono::milliseconds;

// How long rank 0 holds an echo back for the report of its cause, and how long another rank waits
// for the verdict of rank 0 on its own report.
constexpr milliseconds kEchoHold{1000}, kVerdictHold{3000};
// All sends of one relay together: a rank that takes no data must not keep the news from the
// others.
constexpr milliseconds kRelayTime{1000};
constexpr milliseconds kAbortTime{2000};
// Launchers kill all ranks as soon as one has ended; this lets every rank print first.
constexpr milliseconds kGrace{500};
constexpr size_t kMaxCause = 2000;

struct FailureHead {
  int32_t rank = 0;
  FailureOrigin origin = FailureOrigin::here;
  int64_t step = 0;
};

std::string one_line(std::string text) {
  if (text.size() > kMaxCause) text.resize(kMaxCause);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text;
}

}  // namespace

void ControlChannel::watch() {
  auto next_tick = Clock::now() + tick_;
  std::vector<pollfd> polled(peers_.size() + 1);
  while (!stop_.load()) {
    for (size_t i = 0; i < peers_.size(); ++i)
      polled[i] = {peers_[i]->closed ? -1 : peers_[i]->socket.get(), POLLIN, 0};
    polled.back() = {wakeup_.get(), POLLIN, 0};
    if (poll(polled.data(), polled.size(), poll_timeout_ms(next_tick)) > 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t n = ::read(wakeup_.get(), &count, sizeof count);
      for (size_t i = 0; i < peers_.size(); ++i)
        if (polled[i].revents != 0) read_from(*peers_[i]);
    }
    // One tick however late it is: a process that was itself stopped must not find its peers
    // silent.
    if (Clock::now() >= next_tick) {
      tick();
      next_tick = Clock::now() + tick_;
    }
    std::unique_lock lock(mutex_);
    if (const auto report = std::exchange(reported_, std::nullopt)) {
      lock.unlock();
      if (rank_ != 0) relay(*report);
      consider(*report, rank_ != 0                              ? kVerdictHold
                        : report->origin == FailureOrigin::echo ? kEchoHold
                                                                : milliseconds(0));
    }
    if (lock.owns_lock()) lock.unlock();
    if (verdict_ && Clock::now() >= verdict_at_) return conclude();
  }
}

int ControlChannel::poll_timeout_ms(Clock::time_point next_tick) const {
  const auto until = verdict_ ? std::min(next_tick, verdict_at_) : next_tick;
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(0, left));
}

void ControlChannel::read_from(Peer& from) {
  for (;;) {
    switch (from.reader.read(from.socket.get())) {
      case FrameReader::Result::nothing_yet:
        return;
      case FrameReader::Result::frame:
        handle(from, from.reader.take());
        break;
      case FrameReader::Result::closed:
        from.closed = true;
        if (from.left) return;
        // Ranks walk in step, so the step of this rank is that of the lost one give or take one.
        consider({from.rank, step_.load(), FailureOrigin::here,
                  "its process ended without a word (killed, crashed, or its host is gone)"},
                 milliseconds(0));
        if (rank_ != 0) verdict_at_ = Clock::now();  // rank 0 will not give its own
        return;
    }
  }
}

void ControlChannel::handle(Peer& from, Frame frame) {
  from.silent_ticks = 0;
  if (frame.header.type == FrameType::failure && frame.payload.size() >= sizeof(FailureHead)) {
    FailureHead head;
    std::memcpy(&head, frame.payload.data(), sizeof head);
    std::string cause(reinterpret_cast<const char*>(frame.payload.data()) + sizeof head,
                      frame.payload.size() - sizeof head);
    if (rank_ == 0) {
      consider({from.rank, head.step, head.origin, std::move(cause)},
               head.origin == FailureOrigin::echo ? kEchoHold : milliseconds(0));
    } else {
      // The verdict of rank 0 is final, that of an echo too: rank 0 is about to end and its
      // connection to close, which must not displace it.
      verdict_.reset();
      consider({head.rank, head.step, FailureOrigin::here, std::move(cause)}, milliseconds(0));
    }
    return;
  }
  std::lock_guard lock(mutex_);
  if (frame.header.type == FrameType::data) from.inbox.push_back(std::move(frame));
  if (frame.header.type == FrameType::bye) from.left = true;
  changed_.notify_all();
}

void ControlChannel::tick() {
  for (auto& p : peers_) {
    // A connection that is busy needs no sign of life.
    if (std::unique_lock sending(p->sending, std::try_to_lock); sending) {
      const std::atomic<bool> do_not_wait{true};
      send_frame(p->socket.get(), {FrameType::heartbeat, 0, 0}, nullptr, do_not_wait);
    }
    if (p->left) continue;
    if (++p->silent_ticks * std::chrono::duration<double>(tick_).count() > options_.heartbeat_s)
      consider({p->rank, step_.load(), FailureOrigin::here,
                fmt::format("no sign of life for {:g} s (host frozen or network cut)",
                            options_.heartbeat_s)},
               milliseconds(0));
  }
  std::string cause;
  {
    std::lock_guard lock(guard_mutex_);
    if (health_) cause = health_();
  }
  if (cause.empty()) return;
  std::lock_guard lock(mutex_);
  if (!reported_ && !verdict_) reported_ = Failure{rank_, step_.load(), FailureOrigin::echo, cause};
}

// The first failure wins, except that a cause displaces an echo.
void ControlChannel::consider(Failure failure, Clock::duration hold) {
  const bool better =
      verdict_ && verdict_->origin == FailureOrigin::echo && failure.origin == FailureOrigin::here;
  if (verdict_ && !better) return;
  verdict_ = std::move(failure);
  verdict_at_ = Clock::now() + hold;
}

void ControlChannel::relay(const Failure& failure) {
  const FailureHead head{failure.rank, failure.origin, failure.step};
  const std::string cause = one_line(failure.cause);
  std::vector<std::byte> payload(sizeof head + cause.size());
  std::memcpy(payload.data(), &head, sizeof head);
  std::memcpy(payload.data() + sizeof head, cause.data(), cause.size());
  const auto deadline = Clock::now() + kRelayTime;
  const std::atomic<bool> do_not_wait{true};
  for (auto& p : peers_) {
    // Another thread may be in the middle of a frame to this peer.
    std::unique_lock sending(p->sending, std::try_to_lock);
    for (; !sending && Clock::now() < deadline; sending.try_lock())
      std::this_thread::sleep_for(milliseconds(5));
    if (sending)
      send_frame(p->socket.get(), {FrameType::failure, 0, payload.size()}, payload.data(),
                 do_not_wait);
  }
}

void ControlChannel::run_abort() {
  std::function<void()> abort;
  {
    std::lock_guard lock(guard_mutex_);
    abort = abort_;
  }
  if (!abort) return;
  std::promise<void> promise;
  auto done = promise.get_future();
  // Detached: an abort that hangs must not keep the process alive.
  std::thread([abort, promise = std::move(promise)]() mutable {
    abort();
    promise.set_value();
  }).detach();
  done.wait_for(kAbortTime);
}

void ControlChannel::conclude() {
  if (rank_ == 0) relay(*verdict_);
  cancelled_.store(true);
  const std::string line = fmt::format("rank {} failed at step {}: {}", verdict_->rank,
                                       verdict_->step, one_line(verdict_->cause));
  if (!options_.on_failure) {
    const std::string text = line + "\n";  // one write, so that lines of ranks do not mix
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    run_abort();
    std::this_thread::sleep_for(kGrace);
    std::_Exit(EXIT_FAILURE);
  }
  run_abort();
  options_.on_failure(line);
  std::lock_guard lock(mutex_);
  end_ = line;
  changed_.notify_all();
}

}  // namespace saturate::parallel
