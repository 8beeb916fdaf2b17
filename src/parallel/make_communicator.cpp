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
constexpr bool kGloo = SATURATE_WITH_GLOO != 0;
constexpr bool kNccl = SATURATE_WITH_NCCL != 0;

// Copies from rank 0 to all ranks by MPI, for the rendezvous.
template <class Run>
Exchange from_rank_0(const LaunchInfo& launch, const Run& run) {
  Collective c{.kind = CollectiveKind::broadcast, .group = {}, .dtype = DType::bf16};
  for (int r = 0; r < launch.size; ++r) c.group.ranks.push_back(r);
  return [c, run](void* data, int64_t bytes) mutable {
    SAT_ASSERT(bytes % 2 == 0);
    c.count = bytes / 2;
    run(c, data);
  };
}

std::unique_ptr<ControlChannel> open_channel(const LaunchInfo& launch, ControlOptions options) {
  if (!launch.rendezvous_host.empty()) return ControlChannel::open(launch, std::move(options));
  if constexpr (kMpi) {
    // MPI lives just long enough to say where rank 0 listens.
    const auto mpi = make_mpi_transport(launch);
    const Exchange exchange =
        from_rank_0(launch, [&](const Collective& c, void* data) { mpi->run(c, nullptr, data); });
    mpi->connect({});
    return ControlChannel::open(launch, std::move(options), exchange);
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
          launch, nullptr, [launch] { return make_mpi_transport(launch); });
      communicator->attach(ControlChannel::open(
          launch, std::move(options), from_rank_0(launch, [&](const Collective& c, void* data) {
            communicator->wait(communicator->start(c, nullptr, data, {}), {});
          })));
      return communicator;
    }
  }
  if constexpr (kGloo) {
    auto channel = open_channel(launch, std::move(options));
    ControlChannel& opened = *channel;
    return std::make_unique<HostCommunicator>(launch, std::move(channel),
                                              [&opened] { return make_gloo_transport(opened); });
  }
  throw Error(Errc::unsupported, "communicator",
              fmt::format("{} started {} ranks on the CPU, which this build cannot join: {}install "
                          "libgloo-dev and build again",
                          launch.source, launch.size,
                          kMpi ? "start through mpirun or srun --mpi=pmix, or " : ""));
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(Device device, const LaunchInfo& launch,
                                                ControlOptions options) {
  if (launch.size == 1) return std::make_unique<SingleCommunicator>(device);
  options.device = device.kind;
  return device.is_cuda() ? on_gpus(device, launch, std::move(options))
                          : on_cpus(launch, std::move(options));
}

}  // namespace saturate::parallel
