// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/error.h"
#include "base/features.h"
#include "parallel/host_communicator.h"
#include "parallel/nccl_communicator.h"
#include "parallel/single.h"

namespace saturate::parallel {
namespace {

constexpr bool kMpi = SATURATE_WITH_MPI != 0;
constexpr bool kNccl = SATURATE_WITH_NCCL != 0;

std::unique_ptr<ControlChannel> open_channel(const LaunchInfo& launch, ControlOptions options) {
  if (!launch.rendezvous_host.empty()) return ControlChannel::open(launch, std::move(options));
  if constexpr (kMpi) {
    // MPI lives just long enough to say where rank 0 listens.
    const auto mpi = make_mpi_transport(launch);
    return ControlChannel::open(launch, std::move(options),
                                [&](void* data, int64_t bytes) { mpi->broadcast(data, bytes, 0); });
  }
  throw Error(
      Errc::unsupported, "communicator",
      fmt::format(
          "{} started {} ranks but this build has no MPI to find them: install libopenmpi-dev and "
          "build again, or start through torchrun",
          launch.source, launch.size));
}

std::unique_ptr<Communicator> on_gpus(Device device, const LaunchInfo& launch,
                                      ControlOptions options) {
  if constexpr (kNccl)
    return make_nccl_communicator(device, open_channel(launch, std::move(options)));
  throw Error(Errc::unsupported, "communicator",
              fmt::format("{} ranks on GPUs need NCCL, which this build lacks: install libnccl-dev "
                          "and build again, "
                          "or train on the CPU with --device cpu",
                          launch.size));
}

std::unique_ptr<Communicator> on_cpus(const LaunchInfo& launch, ControlOptions options) {
  if constexpr (kMpi) {
    if (launch.mpi_ready) {
      auto communicator = std::make_unique<HostCommunicator>(
          launch, [launch] { return make_mpi_transport(launch); });
      communicator->attach(ControlChannel::open(
          launch, std::move(options),
          [&](void* data, int64_t bytes) { communicator->broadcast(data, bytes, 0); }));
      return communicator;
    }
  }
  auto channel = open_channel(launch, std::move(options));
  auto communicator = std::make_unique<HostCommunicator>(
      launch, [&channel] { return make_tcp_transport(*channel); });
  communicator->attach(std::move(channel));
  return communicator;
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(Device device, const LaunchInfo& launch,
                                                ControlOptions options) {
  if (launch.size == 1) return std::make_unique<SingleCommunicator>();
  options.device = device.kind;
  return device.is_cuda() ? on_gpus(device, launch, std::move(options))
                          : on_cpus(launch, std::move(options));
}

}  // namespace saturate::parallel
