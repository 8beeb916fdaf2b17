// SPDX-License-Identifier: Apache-2.0
// Collectives on CPU memory: a worker thread runs them in order while the caller computes.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "parallel/communicator.h"

namespace saturate::parallel {

// Blocking collectives. Made, used and destroyed by one thread.
class HostTransport {
 public:
  virtual ~HostTransport() = default;
  virtual const char* name() const noexcept = 0;
  // Collective over all ranks; groups come in the order of their ids, the world first.
  virtual void connect(const Group& group) = 0;
  // Errors: collective.
  virtual void run(const Collective& c, const void* input, void* output) = 0;
};

// Owns MPI_Init and MPI_Finalize, so there can be one in the life of a process.
// Errors: collective (MPI call failed), unsupported (MPI sees other ranks).
std::unique_ptr<HostTransport> make_mpi_transport(const LaunchInfo& launch);
// Addresses cross through the channel, which nobody else uses while connect() runs.
// Errors: collective (Gloo cannot connect).
std::unique_ptr<HostTransport> make_gloo_transport(ControlChannel& channel);

class HostCommunicator final : public ChannelCommunicator {
 public:
  // `make_transport` runs on the worker thread; it may use `channel`, or, without one yet, it must
  // be attached before this communicator is used.
  HostCommunicator(const LaunchInfo& launch, std::unique_ptr<ControlChannel> channel,
                   std::function<std::unique_ptr<HostTransport>()> make_transport);
  ~HostCommunicator() override;
  void attach(std::unique_ptr<ControlChannel> channel) { channel_ = std::move(channel); }

  const char* name() const noexcept override { return name_; }
  void wait(Ticket ticket, const Context& compute) override;

 private:
  using Work = std::function<void(HostTransport&)>;
  struct Job {
    Work work;
    std::optional<Collective> collective;  // for failure reports
  };
  Ticket run(const Collective& c, const void* input, void* output, const Context&) override;
  void connect(const Group& group) override;
  Ticket post(Work work, std::optional<Collective> collective = {});
  void stop();
  void work(const std::function<std::unique_ptr<HostTransport>()>& make_transport);

  const char* name_ = "";
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  int64_t posted_ = 0, finished_ = 0;  // jobs, which are numbered from 1
  std::exception_ptr error_;           // the first; later jobs are dropped
  bool stop_ = false;
  bool abandon_ =
      false;  // leave the transport as it is: its shutdown would wait for the other ranks
  std::thread worker_;
};

}  // namespace saturate::parallel
