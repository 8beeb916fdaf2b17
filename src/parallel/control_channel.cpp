// SPDX-License-Identifier: Apache-2.0
// The calling threads' side; the watcher thread is in control_watcher.cpp.
#include "parallel/control_channel.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace saturate::parallel {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(Errc::collective, "control_channel", what);
}

// Four ticks of silence at least, and two a second at most.
std::chrono::milliseconds tick_of(double heartbeat_s) {
  if (!(heartbeat_s >= 0.04 && heartbeat_s <= 1e6))
    throw Error(
        Errc::invalid_argument, "control_channel",
        fmt::format(
            "the time without a sign of life is {} s: 0.04 to 1e6 are possible (environment "
            "variable SATURATE_HEARTBEAT)",
            heartbeat_s));
  return std::chrono::milliseconds(static_cast<int>(std::min(0.5, heartbeat_s / 4) * 1000));
}

// Inside a collective of this channel. One that a broken connection ends stays under way.
class Waiting {
 public:
  Waiting(Activity& activity, const char* what) : activity_(activity) { activity_.begin(what); }
  ~Waiting() {
    if (std::uncaught_exceptions() == 0) activity_.end();
  }
  Waiting(const Waiting&) = delete;

 private:
  Activity& activity_;
};

template <class T>
void reduce_into(T* into, const std::byte* from, int64_t count, ReduceOp op) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    into[i] = op == ReduceOp::sum ? into[i] + value : std::max(into[i], value);
  }
}

}  // namespace

double heartbeat_limit_s() {
  const char* const text = std::getenv("SATURATE_HEARTBEAT");
  if (text == nullptr || *text == '\0') return 5;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  return *end == '\0' ? seconds : -1;
}

std::unique_ptr<ControlChannel> ControlChannel::open(const LaunchInfo& launch,
                                                     ControlOptions options,
                                                     const Exchange& exchange) {
  SAT_ASSERT(launch.size > 1);
  auto sockets = meet(launch, options.device, options.connect_timeout_s, exchange);
  return std::unique_ptr<ControlChannel>(
      new ControlChannel(launch, std::move(options), std::move(sockets)));
}

ControlChannel::ControlChannel(const LaunchInfo& launch, ControlOptions options,
                               std::vector<Descriptor> sockets)
    : rank_(launch.rank),
      size_(launch.size),
      options_(std::move(options)),
      tick_(tick_of(options_.heartbeat_s)),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wakeup_)
    throw Error(Errc::io, "control_channel", fmt::format("eventfd: {}", std::strerror(errno)));
  for (size_t r = 0; r < sockets.size(); ++r) {
    if (!sockets[r]) continue;  // rank 0 itself
    auto peer = std::make_unique<Peer>();
    peer->rank = static_cast<int>(r);
    peer->socket = std::move(sockets[r]);
    peers_.push_back(std::move(peer));
  }
  watcher_ = std::thread([this] { watch(); });
}

ControlChannel::~ControlChannel() {
  stop_.store(true);
  cancelled_.store(true);
  wake();
  watcher_.join();
}

void ControlChannel::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the watcher is awake anyway.
  [[maybe_unused]] const ssize_t n = ::write(wakeup_.get(), &one, sizeof one);
}

ControlChannel::Peer& ControlChannel::peer(int rank) {
  return *peers_[rank_ == 0 ? static_cast<size_t>(rank - 1) : 0];
}

// Waits for the verdict on a broken connection. With the default on_failure the process ends
// meanwhile.
void ControlChannel::await_end(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return end_.has_value(); });
  fail(*end_);
}

void ControlChannel::send(Peer& to, const void* data, int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  do {
    const uint64_t part = std::min(static_cast<uint64_t>(bytes), kMaxFrameBytes);
    bool sent;
    {
      std::lock_guard lock(to.sending);
      sent = send_frame(to.socket.get(), {FrameType::data, calls_, part}, at, cancelled_);
    }
    if (!sent) {
      std::unique_lock lock(mutex_);
      await_end(lock);
    }
    at += part;
    bytes -= static_cast<int64_t>(part);
  } while (bytes > 0);
}

void ControlChannel::receive(Peer& from, void* data, int64_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  do {
    const uint64_t part = std::min(static_cast<uint64_t>(bytes), kMaxFrameBytes);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !from.inbox.empty() || from.left || end_; });
    if (end_) fail(*end_);
    if (from.inbox.empty())
      fail(
          fmt::format("rank {} has finished while rank {} waits for it: ranks made different calls",
                      from.rank, rank_));
    const Frame frame = std::move(from.inbox.front());
    from.inbox.pop_front();
    lock.unlock();
    if (frame.header.sequence != calls_ || frame.header.bytes != part)
      fail(
          fmt::format("rank {} sent {} bytes in its collective {}, rank {} expects {} bytes in its "
                      "collective {}: "
                      "ranks made different calls",
                      from.rank, frame.header.bytes, frame.header.sequence, rank_, part, calls_));
    std::copy(frame.payload.begin(), frame.payload.end(), at);
    at += part;
    bytes -= static_cast<int64_t>(part);
  } while (bytes > 0);
}

void ControlChannel::broadcast(void* data, int64_t bytes, int root) {
  SAT_ASSERT(root >= 0 && root < size_ && bytes >= 0);
  ++calls_;
  const Waiting waiting(activity_, "a broadcast between the hosts");
  if (rank_ == 0) {
    if (root != 0) receive(peer(root), data, bytes);
    for (auto& p : peers_)
      if (p->rank != root) send(*p, data, bytes);
  } else if (rank_ == root) {
    send(peer(0), data, bytes);
  } else {
    receive(peer(0), data, bytes);
  }
}

void ControlChannel::all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) {
  SAT_ASSERT((dtype == DType::f32 || dtype == DType::f64) && count >= 0);
  const int64_t per_part = static_cast<int64_t>(kMaxFrameBytes / size_of(dtype));
  auto* at = static_cast<std::byte*>(data);
  std::vector<std::byte> theirs;
  const Waiting waiting(activity_, "a sum between the hosts");
  for (int64_t done = 0; done < count; done += per_part) {
    ++calls_;
    const int64_t part = std::min(per_part, count - done);
    const int64_t bytes = part * static_cast<int64_t>(size_of(dtype));
    if (rank_ == 0) {
      theirs.resize(static_cast<size_t>(bytes));
      for (auto& p : peers_) {
        receive(*p, theirs.data(), bytes);
        if (dtype == DType::f32)
          reduce_into(reinterpret_cast<float*>(at), theirs.data(), part, op);
        else
          reduce_into(reinterpret_cast<double*>(at), theirs.data(), part, op);
      }
      for (auto& p : peers_) send(*p, at, bytes);
    } else {
      send(peer(0), at, bytes);
      receive(peer(0), at, bytes);
    }
    at += bytes;
  }
}

void ControlChannel::report_failure(const std::string& cause, FailureOrigin origin, int exit_code) {
  const Whereabouts at = activity_.now();
  std::unique_lock lock(mutex_);
  if (!reported_) reported_ = Failure{rank_, at.step, origin, exit_code, at.text, cause};
  wake();
  changed_.wait(lock, [&] { return end_.has_value(); });
}

void ControlChannel::set_guard(std::function<std::string()> health, std::function<void()> abort) {
  std::lock_guard lock(guard_mutex_);
  health_ = std::move(health);
  abort_ = std::move(abort);
}

void ControlChannel::close() {
  const auto say_goodbye = [&] {
    for (auto& p : peers_) {
      std::lock_guard lock(p->sending);
      send_frame(p->socket.get(), {FrameType::bye, 0, 0}, nullptr, cancelled_);
    }
  };
  if (rank_ != 0) say_goodbye();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return end_ || std::all_of(peers_.begin(), peers_.end(), [](auto& p) { return p->left; });
    });
  }
  if (rank_ == 0) say_goodbye();
  stop_.store(true);
  wake();
}

}  // namespace saturate::parallel
