// SPDX-License-Identifier: Apache-2.0
#include "parallel/launch.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace saturate::parallel {
namespace {

Environment open_mpi() {
  return {{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
}
Environment torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "node7"},
          {"MASTER_PORT", "29500"}};
}
Environment slurm() {
  return {{"SLURM_PROCID", "6"},
          {"SLURM_NTASKS", "7"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "3"},
          {"SLURM_TASKS_PER_NODE", "2(x3),1"},
          {"SLURM_JOB_NODELIST", "gpu[03-05,9],x1"},
          {"SLURM_JOB_ID", "1234"},
          {"SLURM_STEP_ID", "0"}};
}

// The message of the refusal, or "" when `environment` is accepted.
std::string refusal(const Environment& environment) {
  try {
    launch_from(environment);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "";
}

TEST(Launch, NoVariablesMeanOneProcess) {
  const LaunchInfo info = launch_from({{"HOME", "/root"}});
  EXPECT_EQ(info.source, "single");
  EXPECT_EQ(info.size, 1);
}

TEST(Launch, ReadsOpenMpi) {
  const LaunchInfo info = launch_from(open_mpi());
  EXPECT_EQ(info.source, "mpirun");
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 2);
  EXPECT_TRUE(info.mpi_ready);
  EXPECT_EQ(info.rendezvous_port, 0);
}

TEST(Launch, ReadsTorchrun) {
  const LaunchInfo info = launch_from(torchrun());
  EXPECT_EQ(info.source, "torchrun");
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 4);
  EXPECT_EQ(info.rendezvous_host, "node7");
  EXPECT_EQ(info.rendezvous_port, 29501);
  EXPECT_FALSE(info.mpi_ready);
}

TEST(Launch, ReadsSlurm) {
  const LaunchInfo info = launch_from(slurm());
  EXPECT_EQ(info.source, "slurm");
  EXPECT_EQ(info.rank, 6);
  EXPECT_EQ(info.size, 7);
  EXPECT_EQ(info.local_size, 1);
  EXPECT_EQ(info.rendezvous_host, "gpu03");
  EXPECT_GE(info.rendezvous_port, 20000);
}

TEST(Launch, SlurmBatchScriptOutsideSrunIsOneProcess) {
  Environment environment = slurm();
  environment.erase("SLURM_STEP_ID");
  environment["SLURM_PROCID"] = "0";
  EXPECT_EQ(launch_from(environment).size, 1);
}

TEST(Launch, TorchrunUnderSrunIsTorchrun) {
  Environment environment = torchrun();
  environment.merge(slurm());
  EXPECT_EQ(launch_from(environment).source, "torchrun");
}

TEST(Launch, NodeLists) {
  EXPECT_EQ(first_slurm_host("a"), "a");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("n[7]"), "n7");
  EXPECT_EQ(first_slurm_host("r[1-2]n[03-9]-ib,z"), "r1n03-ib");
  EXPECT_THROW(first_slurm_host("n[1-2"), Error);
}

TEST(Launch, RefusesMalformedAndContradictory) {
  Environment e = torchrun();
  e["RANK"] = "x";
  EXPECT_NE(refusal(e).find("RANK is 'x'"), std::string::npos);
  e["RANK"] = "99999999999999";
  EXPECT_NE(refusal(e).find("RANK is '99999999999999'"), std::string::npos);
  e["RANK"] = "8";
  EXPECT_NE(refusal(e).find("rank 8 of 8"), std::string::npos);
  e = torchrun();
  e.erase("WORLD_SIZE");
  EXPECT_NE(refusal(e).find("WORLD_SIZE is not"), std::string::npos);
  e = torchrun();
  e.erase("MASTER_ADDR");
  EXPECT_NE(refusal(e).find("MASTER_ADDR is not"), std::string::npos);
  e = torchrun();
  e["LOCAL_RANK"] = "4";
  EXPECT_NE(refusal(e).find("local rank 4 of 4"), std::string::npos);
  e = torchrun();
  e["MASTER_PORT"] = "65535";
  EXPECT_NE(refusal(e).find("MASTER_PORT is 65535"), std::string::npos);
  e = open_mpi();
  e["RANK"] = "0";
  EXPECT_NE(refusal(e).find("mpirun says rank 3 of 4"), std::string::npos);
  e = slurm();
  e["SLURM_TASKS_PER_NODE"] = "2(x3";
  EXPECT_NE(refusal(e).find("SLURM_TASKS_PER_NODE"), std::string::npos);
  e["SLURM_TASKS_PER_NODE"] = "2";
  EXPECT_NE(refusal(e).find("reaches node 3"), std::string::npos);
}

}  // namespace
}  // namespace saturate::parallel
