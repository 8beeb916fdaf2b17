// SPDX-License-Identifier: Apache-2.0
#include "observe/trial/remedies.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

#include "observe/trial/nodes.h"

namespace saturate::observe {
namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;

// A PyTorch program's report that promises these.
Diagnosis report(std::initializer_list<std::pair<FixKind, double>> worth) {
  Diagnosis g;
  g.analysis.framework = "PyTorch";
  DeviceAnalysis& d = g.analysis.devices.emplace_back();
  d.budget[Leaf::matrix] = 300;
  d.budget[Leaf::host_code] = 700;
  g.fixes.numbers = true;
  for (const auto& [kind, speedup] : worth) {
    Fix f;
    f.kind = kind;
    f.speedup = speedup;
    f.evidence = "evidence";
    g.fixes.worth.push_back(f);
  }
  return g;
}

TrialHost host() {
  TrialHost h;
  h.cores = 16;
  h.staging = "/lib/libsaturate_staging.so";
  return h;
}

std::vector<std::string> ids(const std::vector<Remedy>& remedies) {
  std::vector<std::string> all;
  for (const Remedy& r : remedies) all.push_back(r.id);
  return all;
}

void copy_in(Diagnosis& g, int64_t bytes) {
  g.analysis.devices[0].copies[{CopyKind::host_to_device, HostMemory::pageable}] = {10, 10 * bytes,
                                                                                    1, 0};
}

void busy_cores(Diagnosis& g, double cores) {
  Counter c;
  c.info = counter_info("cpu_cores");
  c.range.mean = cores;
  g.counters.values.push_back(c);
}

TEST(Remedies, OnlyWhatTheReportCallsFor) {
  EXPECT_TRUE(choose_remedies(report({}), host()).empty());
  EXPECT_TRUE(choose_remedies(report({{FixKind::fusion, 2}, {FixKind::batch, 2}}), host()).empty());
  EXPECT_EQ(ids(choose_remedies(report({{FixKind::precision, 5}}), host())),
            std::vector<std::string>{"tf32"});
  // What promises most comes first.
  EXPECT_EQ(ids(choose_remedies(report({{FixKind::precision, 1.5}, {FixKind::loader, 3}}), host())),
            (std::vector<std::string>{"loader_workers", "tf32"}));
}

TEST(Remedies, WithoutNumbersTheShareDecidesAndNothingIsPromised) {
  Diagnosis g = report({{FixKind::precision, 5}});
  g.fixes.numbers = false;
  EXPECT_TRUE(choose_remedies(g, host()).empty());
  g.fixes.worth[0].share = 0.06;
  const std::vector<Remedy> chosen = choose_remedies(g, host());
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_FALSE(chosen[0].promise.has_value());
}

TEST(Remedies, Tf32IsForTorchAsWellAndLeavesASettingOfTheUsersAlone) {
  const Diagnosis g = report({{FixKind::precision, 5}});
  const Remedy r = choose_remedies(g, host()).at(0);
  EXPECT_TRUE(r.changes_results);
  EXPECT_EQ(r.environment, (Environment{{"NVIDIA_TF32_OVERRIDE", "1"},
                                        {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"}}));
  EXPECT_EQ(r.promise->speedup, 5);
  TrialHost set = host();
  set.environment["NVIDIA_TF32_OVERRIDE"] = "0";
  EXPECT_TRUE(choose_remedies(g, set).empty());
}

TEST(Remedies, AllocatorSettingsAreAddedToThoseThatAreThere) {
  TrialHost h = host();
  h.environment["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64";
  const Diagnosis g = report({{FixKind::allocator, 1.5}});
  const std::vector<Remedy> chosen = choose_remedies(g, h);
  ASSERT_EQ(ids(chosen), (std::vector<std::string>{"keep_memory", "expandable_segments"}));
  EXPECT_FALSE(chosen[1].promise) << "helps against pieces alone";
  EXPECT_EQ(chosen[1].environment[0].second, "max_split_size_mb:64,expandable_segments:True");
  h.environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False";
  EXPECT_EQ(ids(choose_remedies(g, h)), std::vector<std::string>{"keep_memory"});
  Diagnosis other = g;
  other.analysis.framework = "JAX";
  EXPECT_TRUE(choose_remedies(other, h).empty());
}

TEST(Remedies, LoadersGetTheCoresOfARank) {
  Diagnosis g = report({{FixKind::host_work, 4}});
  Remedy r = choose_remedies(g, host()).at(0);
  EXPECT_EQ(r.workers, 8);
  EXPECT_EQ(r.python, std::vector<std::string>{"loader"});
  copy_in(g, 64 << 20);
  g.ranks.emplace();
  g.ranks->ranks.resize(4);
  r = choose_remedies(g, host()).at(0);
  EXPECT_EQ(r.workers, 3);
  EXPECT_EQ(r.python, (std::vector<std::string>{"loader", "pin"}));
  EXPECT_EQ(r.keep, "DataLoader(..., num_workers=3, persistent_workers=True, pin_memory=True)");
}

TEST(Remedies, CopiesAreStagedWhenTheyAreLargeAndPageable) {
  Diagnosis g = report({{FixKind::copies, 3}});
  EXPECT_TRUE(choose_remedies(g, host()).empty());
  copy_in(g, 4096);
  EXPECT_TRUE(choose_remedies(g, host()).empty());
  copy_in(g, 64 << 20);
  ASSERT_EQ(ids(choose_remedies(g, host())), std::vector<std::string>{"pinned_copies"});
  EXPECT_TRUE(choose_remedies(g, host())[0].staged);
  TrialHost bare = host();
  bare.staging = "";
  EXPECT_TRUE(choose_remedies(g, bare).empty());
}

TEST(Remedies, ThreadsFewerWhereCoresAreShortAndMoreWhereTheyIdle) {
  const auto threads = [](Diagnosis g, const TrialHost& h) -> std::string {
    for (const Remedy& r : choose_remedies(g, h))
      if (r.id == "threads") return r.environment.at(0).first + "=" + r.environment.at(0).second;
    return "";
  };
  EXPECT_EQ(threads(report({{FixKind::cores, 2}}), host()), "OMP_NUM_THREADS=1");
  Diagnosis g = report({{FixKind::loader, 2}});
  EXPECT_EQ(threads(g, host()), "");
  busy_cores(g, 15);
  EXPECT_EQ(threads(g, host()), "OMP_NUM_THREADS=1");
  TrialHost one = host();
  one.environment["OMP_NUM_THREADS"] = "1";
  EXPECT_EQ(threads(g, one), "");
  g.counters.values[0].range.mean = 2;
  EXPECT_EQ(threads(g, one), "OMP_NUM_THREADS=16");
}

TEST(Remedies, TheRestOfTheEnvironment) {
  TrialHost h = host();
  h.faults_per_s = 60'000;
  h.near_cores = {0, 1, 2, 3, 8};
  Diagnosis g = report({{FixKind::copies, 2}, {FixKind::code_load, 1.5}});
  g.analysis.devices[0].budget[Leaf::dependency] = 100;
  const std::vector<Remedy> chosen = choose_remedies(g, h);
  ASSERT_EQ(ids(chosen),
            (std::vector<std::string>{"eager_loading", "malloc", "connections", "near_cores"}));
  EXPECT_EQ(chosen[0].environment, (Environment{{"CUDA_MODULE_LOADING", "EAGER"}}));
  EXPECT_EQ(chosen[3].keep, "taskset -c 0-3,8 before the command, or numactl");
  EXPECT_FALSE(chosen[1].promise.has_value());
}

TEST(Remedies, TogetherTakesAllAndTheFirstValueOfAVariable) {
  Remedy a, b;
  a.environment = {{"A", "1"}, {"B", "2"}};
  b.environment = {{"B", "3"}, {"C", "4"}};
  b.python = {"loader"};
  b.workers = 4;
  b.changes_results = true;
  const Remedy all = together({a, b});
  EXPECT_EQ(all.environment, (Environment{{"A", "1"}, {"B", "2"}, {"C", "4"}}));
  EXPECT_EQ(all.python, b.python);
  EXPECT_EQ(all.workers, 4);
  EXPECT_TRUE(all.changes_results);
}

TEST(Remedies, WhatTheProgramDoesNotDoNeedsNoRemedy) {
  Remedy loader, keep, variable;
  loader.python = {"loader", "pin"};
  loader.workers = 8;
  keep.python = {"keep"};
  EXPECT_EQ(no_use(variable, {}), "");
  EXPECT_NE(no_use(loader, {}).find("PYTHONPATH"), std::string::npos);
  EXPECT_NE(no_use(loader, {"python"}).find("no torch DataLoader"), std::string::npos);
  EXPECT_NE(no_use(loader, {"python", "loader iterable"}).find("Iterable"), std::string::npos);
  EXPECT_NE(no_use(loader, {"python", "loader 8 persistent"}).find("as many"), std::string::npos);
  EXPECT_EQ(no_use(loader, {"python", "loader 8 new"}), "");
  EXPECT_EQ(no_use(loader, {"python", "loader iterable", "loader 0 new"}), "");
  EXPECT_NE(no_use(keep, {"python", "loader 0 new"}).find("empty_cache"), std::string::npos);
  EXPECT_EQ(no_use(keep, {"python", "empty_cache"}), "");
}

TEST(Remedies, SetsOfCores) {
  EXPECT_EQ(parse_core_list("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(core_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_TRUE(parse_core_list("").empty());
  EXPECT_TRUE(parse_core_list("x,-5").empty());
}

TEST(Nodes, SeveralAreSeen) {
  const auto says = [](std::vector<std::string> command,
                       std::map<std::string, std::string> environment = {}) {
    return several_nodes(command, environment);
  };
  EXPECT_EQ(says({"python", "train.py", "--nodes", "4"}), "");
  EXPECT_EQ(says({"torchrun", "--nproc-per-node", "8", "--nnodes", "1", "t.py"}), "");
  EXPECT_EQ(says({"/usr/bin/torchrun", "--nnodes", "1:4", "t.py"}), "torchrun --nnodes 1:4");
  EXPECT_EQ(says({"python", "-m", "torch.distributed.run", "--nnodes=2", "t.py"}),
            "torch.distributed.run --nnodes 2");
  EXPECT_EQ(says({"mpiexec", "-np", "2", "--hostfile", "hosts", "./t"}), "mpirun --hostfile hosts");
  EXPECT_EQ(says({"mpirun", "-np", "2", "./t"}), "");
  EXPECT_EQ(says({"srun", "./t"}, {{"SLURM_NNODES", "2"}}), "srun with SLURM_NNODES=2");
  EXPECT_EQ(says({"srun", "./t"}, {{"SLURM_NNODES", "1"}}), "");
  EXPECT_EQ(says({"./t"}, {{"OMPI_COMM_WORLD_SIZE", "4"}}), "OMPI_COMM_WORLD_SIZE=4");
  EXPECT_EQ(says({"./t"}, {{"WORLD_SIZE", "1"}}), "");
}

}  // namespace
}  // namespace saturate::observe
