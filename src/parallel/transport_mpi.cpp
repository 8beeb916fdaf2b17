// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <mpi.h>
#include <stdlib.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/host_communicator.h"
#include "parallel/host_sum.h"

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

// MPI has no 16-bit floating point: these move as their bits and are added by us.
template <DType type>
void add_half(void* from, void* into, int* count, MPI_Datatype*) {
  add_into(type, into, from, *count);
}

MPI_Datatype type_of(DType t) {
  switch (t) {
    case DType::f64:
      return MPI_DOUBLE;
    case DType::f32:
      return MPI_FLOAT;
    case DType::bf16:
    case DType::f16:
      return MPI_UINT16_T;
    case DType::i32:
      return MPI_INT32_T;
  }
  return MPI_BYTE;
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
    int size = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    if (rank_ != launch.rank || size != launch.size)
      throw Error(
          Errc::unsupported, "mpi",
          fmt::format(
              "{} says rank {} of {}, MPI says rank {} of {}: the launcher belongs to another MPI "
              "than this build. Start with the mpirun of the MPI that Saturate was built with",
              launch.source, launch.rank, launch.size, rank_, size));
    check(MPI_Op_create(add_half<DType::bf16>, 1, &add_bf16_), "MPI_Op_create");
    check(MPI_Op_create(add_half<DType::f16>, 1, &add_f16_), "MPI_Op_create");
  }
  ~MpiTransport() override { MPI_Finalize(); }

  const char* name() const noexcept override { return "mpi"; }

  // Communicators of groups inherit the error handler; MPI_Finalize frees them.
  void connect(const Group& group) override {
    MPI_Comm comm = MPI_COMM_WORLD;
    if (group.id > 0)
      check(MPI_Comm_split(MPI_COMM_WORLD, group.ranks.front(), rank_, &comm), "MPI_Comm_split");
    comms_.push_back(comm);
  }

  void run(const Collective& c, const void* input, void* output) override {
    MPI_Comm comm = comms_[static_cast<size_t>(c.group.id)];
    const MPI_Datatype type = type_of(c.dtype);
    auto* out = static_cast<char*>(output);
    switch (c.kind) {
      case CollectiveKind::all_reduce:
        return in_parts(c.count, [&](int64_t done, int part) {
          const int64_t at = done * bytes_of(c);
          check(MPI_Allreduce(input ? static_cast<const char*>(input) + at : MPI_IN_PLACE, out + at,
                              part, type, sum_of(c.dtype), comm),
                "MPI_Allreduce");
        });
      case CollectiveKind::broadcast:
        return in_parts(c.count, [&](int64_t done, int part) {
          check(MPI_Bcast(out + done * bytes_of(c), part, type, c.root, comm), "MPI_Bcast");
        });
      case CollectiveKind::reduce_scatter:
        return reduce_scatter(c, static_cast<const char*>(input), out, comm);
      case CollectiveKind::all_gather: {
        const char* const own = out + c.group.position(rank_) * c.count * bytes_of(c);
        return check(MPI_Allgather(input == own ? MPI_IN_PLACE : input, one_part(c), type, out,
                                   one_part(c), type, comm),
                     "MPI_Allgather");
      }
      case CollectiveKind::all_to_all:
      case CollectiveKind::send_receive:
        return exchange(c, static_cast<const char*>(input), out, comm);
    }
  }

 private:
  static int64_t bytes_of(const Collective& c) { return static_cast<int64_t>(size_of(c.dtype)); }

  template <class Body>
  static void in_parts(int64_t count, const Body& body) {
    for (int64_t done = 0; done < count; done += kMaxCount)
      body(done, static_cast<int>(std::min(kMaxCount, count - done)));
  }

  static int one_part(const Collective& c) {
    if (c.count > kMaxCount)
      throw Error(Errc::unsupported, "mpi",
                  fmt::format("{}: MPI takes up to {} elements of a rank; use more ranks",
                              describe(c), kMaxCount));
    return static_cast<int>(c.count);
  }

  MPI_Op sum_of(DType t) const {
    return t == DType::bf16 ? add_bf16_ : t == DType::f16 ? add_f16_ : MPI_SUM;
  }

  // MPI's own way in place puts the part at the beginning.
  void reduce_scatter(const Collective& c, const char* input, char* output, MPI_Comm comm) {
    const int64_t bytes = c.count * bytes_of(c);
    const bool in_place = output == input + c.group.position(rank_) * bytes;
    if (in_place) apart_.resize(static_cast<size_t>(bytes));
    check(MPI_Reduce_scatter_block(input, in_place ? apart_.data() : output, one_part(c),
                                   type_of(c.dtype), sum_of(c.dtype), comm),
          "MPI_Reduce_scatter_block");
    if (in_place) std::copy(apart_.begin(), apart_.end(), output);
  }

  void exchange(const Collective& c, const char* input, char* output, MPI_Comm comm) {
    std::vector<MPI_Request> requests;
    const MPI_Datatype type = type_of(c.dtype);
    for (int j = 0; j < c.group.size(); ++j) {
      const int64_t outgoing = c.send_counts[static_cast<size_t>(j)];
      const int64_t incoming = c.receive_counts[static_cast<size_t>(j)];
      in_parts(incoming, [&](int64_t done, int part) {
        check(MPI_Irecv(output + done * bytes_of(c), part, type, j, 0, comm,
                        &requests.emplace_back()),
              "MPI_Irecv");
      });
      in_parts(outgoing, [&](int64_t done, int part) {
        check(
            MPI_Isend(input + done * bytes_of(c), part, type, j, 0, comm, &requests.emplace_back()),
            "MPI_Isend");
      });
      input += outgoing * bytes_of(c);
      output += incoming * bytes_of(c);
    }
    check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
          "MPI_Waitall");
  }

  int rank_ = 0;
  MPI_Op add_bf16_ = MPI_OP_NULL, add_f16_ = MPI_OP_NULL;
  std::vector<MPI_Comm> comms_;  // by the group's id
  std::vector<char> apart_;      // a part of a sum on its way into the whole
};

}  // namespace

std::unique_ptr<HostTransport> make_mpi_transport(const LaunchInfo& launch) {
  return std::make_unique<MpiTransport>(launch);
}

}  // namespace saturate::parallel
