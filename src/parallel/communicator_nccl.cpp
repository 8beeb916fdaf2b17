// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nccl.h>

#include <array>

#include "base/error.h"
#include "parallel/nccl_communicator.h"
#include "runtime/cuda/check.h"
#include "runtime/memory.h"

namespace saturate::parallel {
namespace {

ncclDataType_t type_of(DType t) {
  switch (t) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
  }
  return ncclInt8;
}

std::string describe_error(ncclResult_t code, ncclComm_t comm) {
  const char* detail = ncclGetLastError(comm);
  return fmt::format("{}{}{}", ncclGetErrorString(code), detail && *detail ? ": " : "",
                     detail ? detail : "");
}

// Multiprocessors that messages between pipeline stages take. A receive is enqueued as soon as its
// place is free and runs until its partner sends, beside most of the computation: each
// multiprocessor of it is lost to the products for that long, while a message itself is short.
constexpr int kMessageCtas = 2;

class NcclCommunicator final : public ChannelCommunicator {
 public:
  NcclCommunicator(Device device, std::unique_ptr<ControlChannel> channel)
      : ChannelCommunicator(device, channel->rank(), channel->size()) {
    channel_ = std::move(channel);
    use_device(device_);
    ncclUniqueId id{};
    if (rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    channel_->broadcast(&id, sizeof id, 0);
    ncclComm_t world = nullptr;
    check(ncclCommInitRank(&world, size(), id, rank()), "ncclCommInitRank");
    comms_.push_back({world, world});

    int lowest = 0, highest = 0;
    SAT_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    // First in line for free multiprocessors: the collective needs few, and the end of the step
    // waits for it.
    SAT_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
    SAT_CUDA(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    for (cudaEvent_t& event : done_)
      SAT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    set_guard();
  }

  ~NcclCommunicator() override {
    unwinding();  // then does not return: the collectives in flight may never end
    cudaStreamSynchronize(stream_);
    channel_->set_guard(nullptr, nullptr);
    for (auto of = comms_.rbegin(); of != comms_.rend(); ++of) {
      if (of->messages != of->sums) ncclCommDestroy(of->messages);
      ncclCommDestroy(of->sums);
    }
    for (cudaEvent_t event : done_) cudaEventDestroy(event);
    cudaEventDestroy(fork_);
    cudaStreamDestroy(stream_);
    channel_->close();
  }

  const char* name() const noexcept override { return "nccl"; }

  void wait(Ticket ticket, const Context& compute) override {
    if (!ticket) return;
    SAT_CUDA(cudaStreamWaitEvent(static_cast<cudaStream_t>(compute.stream), event_of(ticket), 0));
  }

 private:
  // Tickets whose end is told apart; an older one waits for what has taken its event since, which is
  // later and so enough.
  static constexpr int64_t kEvents = 64;
  cudaEvent_t& event_of(Ticket t) { return done_[static_cast<size_t>(t.number % kEvents)]; }

  // Colour: the group's first rank. NCCL connects two ranks at their first message of a kind, which
  // must not fall into a capture.
  void connect(const Group& group) override {
    ncclComm_t sums = nullptr, messages = nullptr;
    ncclConfig_t few = NCCL_CONFIG_INITIALIZER;
    few.maxCTAs = kMessageCtas;
    const int colour = group.ranks.front();
    check(ncclCommSplit(comms_[0].sums, colour, rank(), &sums, nullptr), "ncclCommSplit");
    check(ncclCommSplit(comms_[0].sums, colour, rank(), &messages, &few), "ncclCommSplit");
    comms_.push_back({sums, messages});
    set_guard();
    const int64_t n = group.size();
    Buffer from(device_, static_cast<size_t>(n) * sizeof(double)), to(device_, from.bytes());
    const std::vector<int64_t> one(static_cast<size_t>(n), 1);
    SAT_CUDA(cudaMemsetAsync(from.data(), 0, from.bytes(), stream_));
    for (int kind = 0; kind <= static_cast<int>(CollectiveKind::send_receive); ++kind) {
      Collective c{.kind = static_cast<CollectiveKind>(kind), .group = group, .dtype = DType::f64};
      if (c.kind == CollectiveKind::all_to_all || c.kind == CollectiveKind::send_receive)
        c.send_counts = c.receive_counts = one;
      else
        c.count = 1;
      enqueue(c, from.data(), to.data());
    }
    SAT_CUDA(cudaStreamSynchronize(stream_));
  }

  Ticket run(const Collective& c, const void* input, void* output,
             const Context& compute) override {
    SAT_CUDA(cudaEventRecord(fork_, static_cast<cudaStream_t>(compute.stream)));
    SAT_CUDA(cudaStreamWaitEvent(stream_, fork_, 0));
    enqueue(c, input, output);
    const Ticket ticket{++tickets_};
    SAT_CUDA(cudaEventRecord(event_of(ticket), stream_));
    return ticket;
  }

  void enqueue(const Collective& c, const void* input, void* output) {
    const auto count = static_cast<size_t>(c.count);
    const ncclDataType_t type = type_of(c.dtype);
    const auto& [comm, messages] = comms_[static_cast<size_t>(c.group.id)];
    switch (c.kind) {
      case CollectiveKind::all_reduce:
        return check(
            ncclAllReduce(input ? input : output, output, count, type, ncclSum, comm, stream_),
            "ncclAllReduce");
      case CollectiveKind::reduce_scatter:
        return check(ncclReduceScatter(input, output, count, type, ncclSum, comm, stream_),
                     "ncclReduceScatter");
      case CollectiveKind::all_gather:
        return check(ncclAllGather(input, output, count, type, comm, stream_), "ncclAllGather");
      case CollectiveKind::broadcast:
        return check(ncclBroadcast(output, output, count, type, c.root, comm, stream_),
                     "ncclBroadcast");
      case CollectiveKind::all_to_all:
        return exchange(c, static_cast<const char*>(input), static_cast<char*>(output), comm);
      case CollectiveKind::send_receive:
        return exchange(c, static_cast<const char*>(input), static_cast<char*>(output), messages);
    }
  }

  void exchange(const Collective& c, const char* input, char* output, ncclComm_t comm) {
    const ncclDataType_t type = type_of(c.dtype);
    check(ncclGroupStart(), "ncclGroupStart");
    for (int j = 0; j < c.group.size(); ++j) {
      const auto out = static_cast<size_t>(c.send_counts[static_cast<size_t>(j)]);
      const auto in = static_cast<size_t>(c.receive_counts[static_cast<size_t>(j)]);
      if (out > 0) check(ncclSend(input, out, type, j, comm, stream_), "ncclSend");
      if (in > 0) check(ncclRecv(output, in, type, j, comm, stream_), "ncclRecv");
      input += out * size_of(c.dtype);
      output += in * size_of(c.dtype);
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

  void check(ncclResult_t code, const char* call) const {
    if (code == ncclSuccess) return;
    throw Error(Errc::collective, "nccl",
                fmt::format("{} failed on rank {} of {} ({}): {}. NCCL_DEBUG=INFO tells more", call,
                            rank(), size(), to_string(device_),
                            describe_error(code, comms_.empty() ? nullptr : comms_[0].sums)));
  }

  void set_guard() {
    channel_->set_guard(
        [comms = comms_] {
          std::string cause;
          for (const Comms& of : comms) {
            if (cause.empty()) cause = health_of(of.sums);
            if (cause.empty()) cause = health_of(of.messages);
          }
          return cause;
        },
        [comms = comms_] {
          for (const Comms& of : comms) {
            ncclCommAbort(of.sums);
            if (of.messages != of.sums) ncclCommAbort(of.messages);
          }
        });
  }

  // Called by the watcher thread; NCCL allows this query beside other calls.
  static std::string health_of(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t code = ncclCommGetAsyncError(comm, &state); code != ncclSuccess)
      state = code;
    if (state == ncclSuccess || state == ncclInProgress) return "";
    return "[nccl] " + describe_error(state, comm);
  }

  struct Comms {
    ncclComm_t sums, messages;  // of the world one and the same
  };
  std::vector<Comms> comms_;  // by the group's id
  // One stream for all groups: NCCL promises progress only where all ranks run their collectives in
  // one order.
  cudaStream_t stream_ = nullptr;
  // Recorded anew at each use: a wait refers to the latest record before it.
  cudaEvent_t fork_ = nullptr;
  std::array<cudaEvent_t, kEvents> done_ = {};
  int64_t tickets_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device device,
                                                     std::unique_ptr<ControlChannel> channel) {
  return std::make_unique<NcclCommunicator>(device, std::move(channel));
}

}  // namespace saturate::parallel
