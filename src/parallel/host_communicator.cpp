// SPDX-License-Identifier: Apache-2.0
#include "parallel/host_communicator.h"

#include "base/error.h"

namespace saturate::parallel {

HostCommunicator::HostCommunicator(const LaunchInfo& launch,
                                   std::unique_ptr<ControlChannel> channel,
                                   std::function<std::unique_ptr<HostTransport>()> make_transport)
    : ChannelCommunicator({}, launch.rank, launch.size) {
  channel_ = std::move(channel);
  worker_ = std::thread([this, make = std::move(make_transport)] { work(make); });
  try {
    wait(post([this](HostTransport& transport) {
           name_ = transport.name();
           transport.connect(world());
         }),
         {});
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
  const bool passing = unwinding();
  {
    std::lock_guard lock(mutex_);
    abandon_ = passing;
  }
  stop();
  if (channel_ && !passing) channel_->close();
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
      Activity* const activity = job.collective && channel_ ? &channel_->activity() : nullptr;
      if (activity) activity->begin(*job.collective);
      try {
        job.work(*transport);
        if (activity) activity->end();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error;
    }
    ++finished_;
    changed_.notify_all();
  }
  const bool abandon = abandon_ || error_;
  lock.unlock();
  if (abandon) transport.release();  // NOLINT: the process is about to end
}

Ticket HostCommunicator::post(Work work, std::optional<Collective> collective) {
  Ticket ticket;
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(work), std::move(collective)});
    ticket.number = ++posted_;
  }
  changed_.notify_all();
  return ticket;
}

void HostCommunicator::wait(Ticket ticket, const Context&) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= ticket.number; });
  if (error_) std::rethrow_exception(error_);
}

Ticket HostCommunicator::run(const Collective& c, const void* input, void* output, const Context&) {
  return post([=](HostTransport& transport) { transport.run(c, input, output); }, c);
}

void HostCommunicator::connect(const Group& group) {
  wait(post([&group](HostTransport& transport) { transport.connect(group); }), {});
}

}  // namespace saturate::parallel
