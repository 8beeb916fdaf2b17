// SPDX-License-Identifier: Apache-2.0
// The watcher thread of a control channel: reads all connections, sends heartbeats, and ends the
// process when a rank has failed.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>

#include "base/log.h"
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

// Followed by Failure::where and Failure::cause.
struct FailureHead {
  int32_t rank = 0;
  FailureOrigin origin = FailureOrigin::here;
  int64_t step = 0;
  uint64_t stopped_place = 0;
  int32_t stopped_pid = 0;
  int32_t exit_code = 0;
  uint64_t where_bytes = 0;
};

// Followed by Whereabouts::text.
struct BeatHead {
  int64_t step = 0;
  uint64_t moves = 0, place = 0;
  int32_t pid = 0;
  Pace pace = Pace::any;
  bool waits = false;
};

template <class Head>
std::vector<std::byte> packed(const Head& head, std::string_view text) {
  std::vector<std::byte> bytes(sizeof head + text.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, text.data(), text.size());
  return bytes;
}

// The text behind `head`; nothing when the frame is too short for one.
template <class Head>
std::optional<std::string> unpack(const std::vector<std::byte>& bytes, Head& head) {
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  return std::string(reinterpret_cast<const char*>(bytes.data()) + sizeof head,
                     bytes.size() - sizeof head);
}

std::string one_line(std::string text) {
  if (text.size() > kMaxCause) text.resize(kMaxCause);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text;
}

}  // namespace

ProcessId ProcessId::own() {
  static const uint64_t place = [] {
    std::string text;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
    std::error_code unknown;
    text += std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string();
    return std::hash<std::string>()(text);
  }();
  return {place, ::getpid()};
}

void ProcessId::kill_if_here() const {
  const ProcessId self = own();
  if (pid <= 1 || pid == self.pid || place != self.place) return;
  // The number may belong to another program by now.
  std::error_code unknown;
  const auto program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), unknown);
  if (!unknown && program == std::filesystem::read_symlink("/proc/self/exe", unknown))
    ::kill(pid, SIGKILL);
}

void ControlChannel::watch() {
  for (auto& p : peers_) beat(*p);
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
        consider(loss_of(from,
                         "its process ended without a word (killed, crashed, or its host is gone)"),
                 milliseconds(0));
        if (rank_ != 0) verdict_at_ = Clock::now();  // rank 0 will not give its own
        return;
    }
  }
}

void ControlChannel::handle(Peer& from, Frame frame) {
  from.silent_ticks = 0;
  if (frame.header.type == FrameType::heartbeat) {
    BeatHead head;
    if (auto text = unpack(frame.payload, head)) {
      from.at = {head.step, head.moves, head.pace, head.waits, *std::move(text)};
      from.process = {head.place, head.pid};
    }
    return;
  }
  if (frame.header.type == FrameType::failure) {
    FailureHead head;
    const auto text = unpack(frame.payload, head);
    if (!text || head.where_bytes > text->size()) return;
    Failure failure{.rank = head.rank,
                    .step = head.step,
                    .origin = head.origin,
                    .exit_code = head.exit_code,
                    .where = text->substr(0, head.where_bytes),
                    .cause = text->substr(head.where_bytes),
                    .stopped = {head.stopped_place, head.stopped_pid}};
    if (rank_ == 0) {
      failure.rank = from.rank;
      consider(std::move(failure),
               head.origin == FailureOrigin::echo ? kEchoHold : milliseconds(0));
    } else {
      // The verdict of rank 0 is final, that of an echo too: rank 0 is about to end and its
      // connection to close, which must not displace it.
      verdict_.reset();
      failure.origin = FailureOrigin::here;
      consider(std::move(failure), milliseconds(0));
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
    beat(*p);
    if (p->left) continue;
    if (++p->silent_ticks * std::chrono::duration<double>(tick_).count() <= options_.heartbeat_s)
      continue;
    Failure lost = loss_of(*p, fmt::format("no sign of life for {:g} s (process stopped, host "
                                           "frozen or network cut)",
                                           options_.heartbeat_s));
    lost.stopped = p->process;
    consider(std::move(lost), milliseconds(0));
  }
  look_for_stall();
  std::string cause;
  {
    std::lock_guard lock(guard_mutex_);
    if (health_) cause = health_();
  }
  if (cause.empty()) return;
  std::lock_guard lock(mutex_);
  const Whereabouts at = activity_.now();
  if (!reported_ && !verdict_)
    reported_ = Failure{rank_, at.step, FailureOrigin::echo, kExitMachine, at.text, cause};
}

void ControlChannel::beat(Peer& to) {
  // A connection that is busy needs no sign of life.
  const std::unique_lock sending(to.sending, std::try_to_lock);
  if (!sending) return;
  const Whereabouts at = activity_.now();
  const ProcessId self = ProcessId::own();
  const auto payload =
      packed(BeatHead{at.step, at.moves, self.place, self.pid, at.pace, at.waits}, at.text);
  const std::atomic<bool> do_not_wait{true};
  send_frame(to.socket.get(), {FrameType::heartbeat, 0, payload.size()}, payload.data(),
             do_not_wait);
}

// Ranks walk in step, so the step of this rank is that of the lost one give or take one; what it was
// at is as old as its last heartbeat.
ControlChannel::Failure ControlChannel::loss_of(const Peer& lost, std::string cause) {
  return {.rank = lost.rank,
          .step = activity_.now().step,
          .where = lost.at.text,
          .cause = std::move(cause)};
}

void ControlChannel::look_for_stall() {
  if (rank_ != 0) return;
  std::vector<Whereabouts> ranks = {activity_.now()};
  for (const auto& p : peers_) ranks.push_back(p->at);
  const StallWatch::Finding found = stalls_.look(ranks, Clock::now());
  if (found.failed_rank >= 0) {
    const Whereabouts& at = ranks[static_cast<size_t>(found.failed_rank)];
    consider({.rank = found.failed_rank, .step = at.step, .where = at.text, .cause = found.told},
             milliseconds(0));
  } else if (!found.told.empty()) {
    log_warning(found.told);
  }
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
  const auto payload = packed(FailureHead{.rank = failure.rank,
                                          .origin = failure.origin,
                                          .step = failure.step,
                                          .stopped_place = failure.stopped.place,
                                          .stopped_pid = failure.stopped.pid,
                                          .exit_code = failure.exit_code,
                                          .where_bytes = failure.where.size()},
                              failure.where + one_line(failure.cause));
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
  const Failure& v = *verdict_;
  const std::string line = one_line(fmt::format("rank {} failed at step {}{}{}: {}", v.rank, v.step,
                                                v.where.empty() ? "" : " ", v.where, v.cause));
  if (!options_.on_failure) {
    const std::string text = line + "\n";  // one write, so that lines of ranks do not mix
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    run_abort();
    std::this_thread::sleep_for(kGrace);
    // A rank that is stopped cannot end itself, and holds its GPU for as long as it lives. Last, so
    // that the others have noticed its silence and not its end.
    v.stopped.kill_if_here();
    std::_Exit(v.exit_code);
  }
  run_abort();
  options_.on_failure(line);
  std::lock_guard lock(mutex_);
  end_ = line;
  changed_.notify_all();
}

}  // namespace saturate::parallel
