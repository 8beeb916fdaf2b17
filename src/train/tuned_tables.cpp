// SPDX-License-Identifier: Apache-2.0
#include "train/tuned_tables.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/cache_folder.h"
#include "base/durable_file.h"
#include "base/log.h"
#include "kernels/attention/tune/table.h"
#include "kernels/gemm/tune/table.h"

namespace saturate::train {
namespace {

using kernels::KernelOptions;
using kernels::TuneMachine;

KernelOptions without_tables(const RunConfig& config, bool cpu) {
  KernelOptions options = kernels::kernel_options_from_environment();
  options.allow_tf32 = config.train.tf32;
  options.allow_bf16 = cpu && config.train.precision == "bf16";
  return options;
}

// One kind of table: what differs between them.
template <class Table, class Read>
struct Kind {
  const char* key;   // of the configuration
  const char* file;  // in the folder of a run
  const char* what;  // "matrix products"
  std::string (*path)(const std::string& folder, const TuneMachine&);
  Read (*read)(const std::string& path, const TuneMachine&);
  std::string (*text)(const TuneMachine&, const Table&);
};
constexpr Kind<kernels::GemmTable, kernels::ReadGemmTable> kGemm{
    "train.gemm_table",       "gemm_table.json",        "matrix products",
    kernels::gemm_table_path, kernels::read_gemm_table, kernels::to_json};
constexpr Kind<kernels::AttentionTable, kernels::ReadAttentionTable> kAttention{
    "train.attention_table",       "attention_table.json",        "shapes of attention",
    kernels::attention_table_path, kernels::read_attention_table, kernels::to_json};

template <class Table, class Read>
Table chosen(const Kind<Table, Read>& kind, const std::string& choice, const TuneMachine& machine) {
  if (choice == "none") return {};
  const bool named = choice != "auto";
  const std::string folder = user_cache_folder();
  if (!named && folder.empty()) return {};
  const std::string path = named ? choice : kind.path(folder, machine);
  Read read = kind.read(path, machine);
  if (named && !read.exists) read.problem = path + " is not there";
  if (!read.problem.empty()) {
    if (named) throw Error(Errc::invalid_argument, kind.key, read.problem);
    log_warning("[tune] " + read.problem);
  }
  return std::move(read.table);
}

template <class Table, class Read>
Table of_run(const Kind<Table, Read>& kind, const std::string& choice, const RunConfig& config,
             const TuneMachine& machine, parallel::Communicator& ranks) {
  const std::string path = config.out + "/" + kind.file;
  if (ranks.rank() == 0 && !config.resume)
    write_durable_file(path, kind.text(machine, chosen(kind, choice, machine)));
  ranks.barrier();
  Read read = kind.read(path, machine);
  if (!read.problem.empty() && ranks.rank() == 0) {
    log_warning("[tune] the run goes on without its table, so not bit for bit: " + read.problem);
  }
  if (!read.table.empty() && ranks.rank() == 0) {
    log_info(fmt::format("{} tuned {} ({})", read.table.entries().size(), kind.what, path));
  }
  return std::move(read.table);
}

KernelOptions with_tables(const RunConfig& config, kernels::GemmTable gemm,
                          kernels::AttentionTable attention) {
  KernelOptions options = without_tables(config, false);
  if (!gemm.empty())
    options.gemm_table = std::make_shared<const kernels::GemmTable>(std::move(gemm));
  if (!attention.empty())
    options.attention_table = std::make_shared<const kernels::AttentionTable>(std::move(attention));
  return options;
}

}  // namespace

KernelOptions kernel_options(const RunConfig& config, Device device) {
  if (!device.is_cuda()) return without_tables(config, true);
  const TuneMachine machine = kernels::tune_machine(device);
  return with_tables(config, chosen(kGemm, config.train.gemm_table, machine),
                     chosen(kAttention, config.train.attention_table, machine));
}

KernelOptions kernel_options_of_run(const RunConfig& config, Device device,
                                    parallel::Communicator& ranks) {
  if (!device.is_cuda()) return without_tables(config, true);
  return kernel_options_of_run(config, kernels::tune_machine(device), ranks);
}

KernelOptions kernel_options_of_run(const RunConfig& config, const TuneMachine& machine,
                                    parallel::Communicator& ranks) {
  kernels::GemmTable gemm = of_run(kGemm, config.train.gemm_table, config, machine, ranks);
  return with_tables(config, std::move(gemm),
                     of_run(kAttention, config.train.attention_table, config, machine, ranks));
}

}  // namespace saturate::train
