// SPDX-License-Identifier: Apache-2.0
// Who am I among the ranks: read from the variables that existing launchers set.
#pragma once
#include <map>
#include <string>

namespace saturate::parallel {

struct LaunchInfo {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this host; local_rank picks the GPU
  std::string source = "single";       // "mpirun", "torchrun", "slurm" or "single"
  std::string rendezvous_host;         // where rank 0 listens; empty: rank 0 tells through MPI
  int rendezvous_port = 0;  // first port that rank 0 tries; 0: any free one, told through MPI
  std::string job;          // the launcher's name of this run: keeps two runs on one host apart
  bool mpi_ready = false;   // MPI_Init finds the other ranks (mpirun, or srun with PMI or PMIx)
  bool one_host() const noexcept { return local_size == size; }
};

using Environment = std::map<std::string, std::string>;

// Looks for Open MPI (OMPI_COMM_WORLD_*), torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
// MASTER_PORT), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, node list) and PMI (PMI_RANK,
// PMI_SIZE), in this order, so that torchrun under srun counts as torchrun. A Slurm batch script
// outside srun is one process. Errors: invalid_argument (missing, malformed or contradictory
// variables; names them).
LaunchInfo launch_from(const Environment& environment);

// launch_from() of this process's environment.
LaunchInfo current_launch();

// The same ranks found without MPI, which starts only once in the place of a rank: over TCP, as
// torchrun's. Ranks of mpirun are found so on one host. Errors: unsupported (ranks that only MPI can
// find).
LaunchInfo restartable(LaunchInfo info);

// First host of a Slurm list: "gpu[03-05,9],login" gives "gpu03".
std::string first_slurm_host(const std::string& list);

}  // namespace saturate::parallel
