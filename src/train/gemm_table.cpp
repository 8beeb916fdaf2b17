// SPDX-License-Identifier: Apache-2.0
#include "train/gemm_table.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/durable_file.h"
#include "base/log.h"
#include "kernels/gemm/tune/table.h"

namespace saturate::train {
namespace {

kernels::GemmTable chosen_table(const std::string& choice, const kernels::TuneMachine& machine) {
  if (choice == "none") return {};
  const bool named = choice != "auto";
  const std::string folder = kernels::tune_cache_folder();
  if (!named && folder.empty()) return {};
  const std::string path = named ? choice : kernels::gemm_table_path(folder, machine);
  kernels::ReadGemmTable read = kernels::read_gemm_table(path, machine);
  if (named && !read.exists) read.problem = path + " is not there";
  if (!read.problem.empty()) {
    if (named) throw Error(Errc::invalid_argument, "train.gemm_table", read.problem);
    log_warning("[tune] " + read.problem);
  }
  return std::move(read.table);
}

}  // namespace

void use_gemm_table_of(const RunConfig& config, Device device) {
  if (!device.is_cuda()) return;
  kernels::use_gemm_table(device,
                          chosen_table(config.train.gemm_table, kernels::tune_machine(device)));
}

void use_gemm_table_of_run(const RunConfig& config, Device device, parallel::Communicator& ranks) {
  if (!device.is_cuda()) return;
  const kernels::TuneMachine machine = kernels::tune_machine(device);
  const std::string path = config.out + "/gemm_table.json";
  if (ranks.rank() == 0 && !config.resume) {
    const kernels::GemmTable table = chosen_table(config.train.gemm_table, machine);
    write_durable_file(path, kernels::to_json(machine, table));
  }
  ranks.barrier();
  kernels::ReadGemmTable read = kernels::read_gemm_table(path, machine);
  if (!read.problem.empty() && ranks.rank() == 0) {
    log_warning("[tune] the run goes on without its table, so not bit for bit: " + read.problem);
  }
  if (!read.table.empty() && ranks.rank() == 0) {
    log_info(fmt::format("{} tuned matrix products ({})", read.table.entries().size(), path));
  }
  kernels::use_gemm_table(device, std::move(read.table));
}

}  // namespace saturate::train
