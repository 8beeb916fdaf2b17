// SPDX-License-Identifier: Apache-2.0
#include "parallel/host_communicator.h"

#include <fmt/format.h>

#include "base/error.h"

namespace saturate::parallel {
namespace {

class TcpTransport final : public HostTransport {
 public:
  explicit TcpTransport(ControlChannel& channel) : channel_(channel) {}
  const char* name() const noexcept override { return "tcp"; }
  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    channel_.all_reduce(data, count, dtype, op);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    channel_.broadcast(data, bytes, root);
  }

 private:
  ControlChannel& channel_;
};

}  // namespace

std::unique_ptr<HostTransport> make_tcp_transport(ControlChannel& channel) {
  return std::make_unique<TcpTransport>(channel);
}

void report_failure_over(ControlChannel& channel, const std::exception& cause) {
  const auto* error = dynamic_cast<const Error*>(&cause);
  const bool echo = error && error->code() == Errc::collective;
  channel.report_failure(cause.what(), echo ? FailureOrigin::echo : FailureOrigin::here);
}

HostCommunicator::HostCommunicator(const LaunchInfo& launch,
                                   std::function<std::unique_ptr<HostTransport>()> make_transport)
    : rank_(launch.rank), size_(launch.size), exceptions_at_start_(std::uncaught_exceptions()) {
  worker_ = std::thread([this, make = std::move(make_transport)] { work(make); });
  try {
    post([this](HostTransport& transport) { name_ = transport.name(); });
    drain();
  } catch (...) {
    stop();
    throw;
  }
}

void HostCommunicator::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

HostCommunicator::~HostCommunicator() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  if (unwinding && channel_)
    channel_->report_failure("an exception ended its work", FailureOrigin::here);
  {
    std::lock_guard lock(mutex_);
    abandon_ = unwinding;
  }
  stop();
  if (channel_ && !unwinding) channel_->close();
}

void HostCommunicator::work(const std::function<std::unique_ptr<HostTransport>()>& make_transport) {
  std::unique_ptr<HostTransport> transport;
  try {
    transport = make_transport();
  } catch (...) {
    std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (!error_) {
      lock.unlock();
      std::exception_ptr error;
      try {
        job(*transport);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error;
    }
    --unfinished_;
    changed_.notify_all();
  }
  const bool abandon = abandon_ || error_;
  lock.unlock();
  if (abandon) transport.release();  // NOLINT: the process is about to end
}

void HostCommunicator::post(Job job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    ++unfinished_;
  }
  changed_.notify_all();
}

void HostCommunicator::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return unfinished_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

void HostCommunicator::begin_all_reduce(void* data, int64_t count, DType dtype,
                                        const Stream& compute) {
  if ((dtype != DType::f32 && dtype != DType::f64) || count < 0 || compute.device().is_cuda())
    throw Error(Errc::invalid_argument, "all_reduce",
                fmt::format("{} elements of {} on {}: f32 or f64 in CPU memory is needed", count,
                            name_of(dtype), to_string(compute.device())));
  if (count == 0) return;
  post([=](HostTransport& transport) { transport.all_reduce(data, count, dtype, ReduceOp::sum); });
}

void HostCommunicator::wait(const Stream&) { drain(); }

void HostCommunicator::broadcast(void* data, int64_t bytes, int root) {
  if (root < 0 || root >= size_ || bytes < 0)
    throw Error(
        Errc::invalid_argument, "broadcast",
        fmt::format("{} bytes from rank {}: ranks 0 to {} are here", bytes, root, size_ - 1));
  post([=](HostTransport& transport) { transport.broadcast(data, bytes, root); });
  drain();
}

double HostCommunicator::reduce_one(double value, ReduceOp op) {
  post([&value, op](HostTransport& transport) { transport.all_reduce(&value, 1, DType::f64, op); });
  drain();
  return value;
}

void HostCommunicator::barrier() { reduce_one(0, ReduceOp::sum); }
double HostCommunicator::all_reduce_sum(double value) { return reduce_one(value, ReduceOp::sum); }
double HostCommunicator::all_reduce_max(double value) { return reduce_one(value, ReduceOp::max); }

void HostCommunicator::set_step(int64_t step) noexcept {
  if (channel_) channel_->set_step(step);
}

void HostCommunicator::report_failure(const std::exception& cause) {
  if (channel_) report_failure_over(*channel_, cause);
}

}  // namespace saturate::parallel
