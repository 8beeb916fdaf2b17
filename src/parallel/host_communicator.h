// SPDX-License-Identifier: Apache-2.0
// Collectives on CPU memory: a worker thread runs them in order while the caller computes.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "parallel/communicator.h"

namespace saturate::parallel {

// Blocking collectives. Made, used and destroyed by one thread.
class HostTransport {
 public:
  virtual ~HostTransport() = default;
  virtual const char* name() const noexcept = 0;
  virtual void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
};

// MPI_COMM_WORLD; owns MPI_Init and MPI_Finalize, so there can be one in the life of a process.
// Errors: collective (MPI call failed), unsupported (no MPI in this build, or MPI sees other
// ranks).
std::unique_ptr<HostTransport> make_mpi_transport(const LaunchInfo& launch);
std::unique_ptr<HostTransport> make_tcp_transport(ControlChannel& channel);

class HostCommunicator final : public Communicator {
 public:
  // `make_transport` runs on the worker thread.
  HostCommunicator(const LaunchInfo& launch,
                   std::function<std::unique_ptr<HostTransport>()> make_transport);
  ~HostCommunicator() override;
  void attach(std::unique_ptr<ControlChannel> channel) { channel_ = std::move(channel); }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const char* name() const noexcept override { return name_; }
  void begin_all_reduce(void* data, int64_t count, DType dtype, const Stream& compute) override;
  void wait(const Stream& compute) override;
  void broadcast(void* data, int64_t bytes, int root) override;
  void barrier() override;
  double all_reduce_sum(double value) override;
  double all_reduce_max(double value) override;
  void set_step(int64_t step) noexcept override;
  void report_failure(const std::exception& cause) override;

 private:
  using Job = std::function<void(HostTransport&)>;
  void post(Job job);
  void drain();
  void stop();
  void work(const std::function<std::unique_ptr<HostTransport>()>& make_transport);
  double reduce_one(double value, ReduceOp op);

  const int rank_, size_;
  const int exceptions_at_start_;
  const char* name_ = "";
  std::unique_ptr<ControlChannel> channel_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  int unfinished_ = 0;        // jobs posted and not done
  std::exception_ptr error_;  // the first; later jobs are dropped
  bool stop_ = false;
  bool abandon_ =
      false;  // leave the transport as it is: its shutdown would wait for the other ranks
  std::thread worker_;
};

// Reports `cause` over the channel with the right origin.
void report_failure_over(ControlChannel& channel, const std::exception& cause);

}  // namespace saturate::parallel
