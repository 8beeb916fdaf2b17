// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <mpi.h>
#include <stdlib.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/host_communicator.h"

namespace saturate::parallel {
namespace {

// MPI counts are int; a power of two keeps the cut aligned.
constexpr int64_t kMaxCount = int64_t{1} << 28;

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(Errc::collective, "mpi", fmt::format("{}: {}", call, text));
}

class MpiTransport final : public HostTransport {
 public:
  explicit MpiTransport(const LaunchInfo& launch) {
    int before = 0;
    check(MPI_Initialized(&before), "MPI_Initialized");
    if (before)
      throw Error(Errc::unsupported, "mpi",
                  "MPI was started before in this process, and it starts only once");
    // The worker waits inside MPI while the caller computes on all cores: waiting must not take one
    // of them. Costs some latency; a value set by the user stays.
    ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
      throw Error(Errc::unsupported, "mpi",
                  "this MPI has no thread support (MPI_THREAD_SERIALIZED)");
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int rank = 0, size = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    if (rank != launch.rank || size != launch.size)
      throw Error(
          Errc::unsupported, "mpi",
          fmt::format(
              "{} says rank {} of {}, MPI says rank {} of {}: the launcher belongs to another MPI "
              "than this build. Start with the mpirun of the MPI that Saturate was built with",
              launch.source, launch.rank, launch.size, rank, size));
  }
  ~MpiTransport() override { MPI_Finalize(); }

  const char* name() const noexcept override { return "mpi"; }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    auto* at = static_cast<char*>(data);
    for (int64_t done = 0; done < count; done += kMaxCount) {
      const int part = static_cast<int>(std::min(kMaxCount, count - done));
      check(MPI_Allreduce(MPI_IN_PLACE, at, part, dtype == DType::f32 ? MPI_FLOAT : MPI_DOUBLE,
                          op == ReduceOp::sum ? MPI_SUM : MPI_MAX, MPI_COMM_WORLD),
            "MPI_Allreduce");
      at += static_cast<size_t>(part) * size_of(dtype);
    }
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    auto* at = static_cast<char*>(data);
    for (int64_t done = 0; done < bytes; done += kMaxCount)
      check(MPI_Bcast(at + done, static_cast<int>(std::min(kMaxCount, bytes - done)), MPI_BYTE,
                      root, MPI_COMM_WORLD),
            "MPI_Bcast");
  }
};

}  // namespace

std::unique_ptr<HostTransport> make_mpi_transport(const LaunchInfo& launch) {
  return std::make_unique<MpiTransport>(launch);
}

}  // namespace saturate::parallel
