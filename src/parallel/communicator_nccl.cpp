// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nccl.h>

#include <exception>

#include "base/error.h"
#include "parallel/host_communicator.h"
#include "parallel/nccl_communicator.h"
#include "runtime/cuda/check.h"

namespace saturate::parallel {
namespace {

std::string describe(ncclResult_t code, ncclComm_t comm) {
  const char* detail = ncclGetLastError(comm);
  return fmt::format("{}{}{}", ncclGetErrorString(code), detail && *detail ? ": " : "",
                     detail ? detail : "");
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Device device, std::unique_ptr<ControlChannel> channel)
      : device_(device),
        exceptions_at_start_(std::uncaught_exceptions()),
        channel_(std::move(channel)) {
    use_device(device_);
    ncclUniqueId id{};
    if (rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    channel_->broadcast(&id, sizeof id, 0);
    check(ncclCommInitRank(&comm_, size(), id, rank()), "ncclCommInitRank");

    int lowest = 0, highest = 0;
    SAT_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    // First in line for free multiprocessors: the collective needs few, and the end of the step
    // waits for it.
    SAT_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
    SAT_CUDA(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    SAT_CUDA(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
    channel_->set_guard([comm = comm_] { return health_of(comm); },
                        [comm = comm_] { ncclCommAbort(comm); });
  }

  ~NcclCommunicator() override {
    // Does not return: the collectives in flight may never end.
    if (std::uncaught_exceptions() > exceptions_at_start_)
      channel_->report_failure("an exception ended its work", FailureOrigin::here);
    cudaStreamSynchronize(stream_);
    channel_->set_guard(nullptr, nullptr);
    ncclCommDestroy(comm_);
    cudaEventDestroy(join_);
    cudaEventDestroy(fork_);
    cudaStreamDestroy(stream_);
    channel_->close();
  }

  int rank() const noexcept override { return channel_->rank(); }
  int size() const noexcept override { return channel_->size(); }
  const char* name() const noexcept override { return "nccl"; }

  void begin_all_reduce(void* data, int64_t count, DType dtype, const Stream& compute) override {
    if ((dtype != DType::f32 && dtype != DType::f64) || count < 0 || !(compute.device() == device_))
      throw Error(Errc::invalid_argument, "all_reduce",
                  fmt::format("{} elements of {} on {}: f32 or f64 on {} is needed", count,
                              name_of(dtype), to_string(compute.device()), to_string(device_)));
    if (count == 0) return;
    SAT_CUDA(cudaEventRecord(fork_, static_cast<cudaStream_t>(compute.native())));
    SAT_CUDA(cudaStreamWaitEvent(stream_, fork_, 0));
    check(ncclAllReduce(data, data, static_cast<size_t>(count),
                        dtype == DType::f32 ? ncclFloat32 : ncclFloat64, ncclSum, comm_, stream_),
          "ncclAllReduce");
    pending_ = true;
  }

  // Outside a capture that has no begin, recording the join event would break the capture of
  // `compute`.
  void wait(const Stream& compute) override {
    if (!pending_) return;
    pending_ = false;
    SAT_CUDA(cudaEventRecord(join_, stream_));
    SAT_CUDA(cudaStreamWaitEvent(static_cast<cudaStream_t>(compute.native()), join_, 0));
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    if (root < 0 || root >= size() || bytes < 0)
      throw Error(
          Errc::invalid_argument, "broadcast",
          fmt::format("{} bytes from rank {}: ranks 0 to {} are here", bytes, root, size() - 1));
    channel_->broadcast(data, bytes, root);
  }
  void barrier() override { all_reduce_sum(0); }
  double all_reduce_sum(double value) override { return reduce_one(value, ReduceOp::sum); }
  double all_reduce_max(double value) override { return reduce_one(value, ReduceOp::max); }
  void set_step(int64_t step) noexcept override { channel_->set_step(step); }
  void report_failure(const std::exception& cause) override {
    report_failure_over(*channel_, cause);
  }

 private:
  void check(ncclResult_t code, const char* call) const {
    if (code == ncclSuccess) return;
    throw Error(Errc::collective, "nccl",
                fmt::format("{} failed on rank {} of {} ({}): {}. NCCL_DEBUG=INFO tells more", call,
                            rank(), size(), to_string(device_), describe(code, comm_)));
  }

  // Called by the watcher thread; NCCL allows this query beside other calls.
  static std::string health_of(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t code = ncclCommGetAsyncError(comm, &state); code != ncclSuccess)
      state = code;
    if (state == ncclSuccess || state == ncclInProgress) return "";
    return "[nccl] " + describe(state, comm);
  }

  double reduce_one(double value, ReduceOp op) {
    channel_->all_reduce(&value, 1, DType::f64, op);
    return value;
  }

  const Device device_;
  const int exceptions_at_start_;
  const std::unique_ptr<ControlChannel> channel_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  // Recorded anew at each use: a wait refers to the latest record before it.
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  bool pending_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device device,
                                                     std::unique_ptr<ControlChannel> channel) {
  return std::make_unique<NcclCommunicator>(device, std::move(channel));
}

}  // namespace saturate::parallel
