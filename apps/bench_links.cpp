// SPDX-License-Identifier: Apache-2.0
// `saturate bench links` and `saturate bench step --operations`: what a machine file is made of.
#include <fmt/format.h>

#include <filesystem>

#include "apps/commands.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "parallel/communicator.h"
#include "plan/measure.h"

namespace saturate::apps {
namespace {

// The file to extend, or what is measured of this device where there is none yet.
plan::Machine machine_to_extend(const std::string& path, Device device) {
  if (!path.empty() && std::filesystem::exists(path)) return plan::read_machine(path);
  return plan::measure_device(device);
}

void print(const char* level, const std::vector<plan::LinkTable>& tables) {
  for (const plan::LinkTable& t : tables) {
    for (size_t i = 0; i < t.bytes.size(); ++i)
      fmt::print(
          R"({{"what":"links","within":"{}","kind":"{}","ranks":{},"bytes":{:.0f},"us":{:.2f},"gbs":{:.3f}}})"
          "\n",
          level, name_of(t.kind), t.ranks, t.bytes[i], t.us[i], t.bytes[i] / t.us[i] * 1e-3);
  }
}

int bench_links(const BenchOptions& o, const parallel::LaunchInfo& launch, Device device,
                parallel::Communicator& ranks) {
  if (ranks.size() < 2)
    throw Error(Errc::invalid_argument, "bench",
                "links join ranks, and this is one: start it with mpirun -n 2, torchrun "
                "--nproc-per-node 2 --no-python, or srun -n 2");
  const int local = launch.local_size;
  const plan::LinkTables links = plan::measure_all_links(ranks, local, device);
  if (ranks.rank() != 0) return 0;
  print("host", links.inside);
  print("network", links.between);
  if (o.machine.empty()) return 0;
  plan::Machine m = machine_to_extend(o.machine, device);
  plan::replace_links(m, links, local, ranks.size() / local);
  write_durable_file(o.machine, plan::to_toml(m));
  log_info(fmt::format("{}: links written", o.machine));
  return 0;
}

}  // namespace

int run_bench_links(const BenchOptions& o) {
  const parallel::LaunchInfo launch = parallel::current_launch();
  Device device = parse_device(o.config.train.device);
  if (device.is_cuda() && launch.size > 1) device.index = launch.local_rank;
  use_device(device);
  const auto ranks = parallel::make_communicator(device, launch);
  try {
    return bench_links(o, launch, device, *ranks);
  } catch (const std::exception& e) {
    ranks->report_failure(e);
    throw;
  }
}

int run_bench_operations(const BenchOptions& o) {
  const Device device = parse_device(o.config.train.device);
  use_device(device);
  const auto operations = plan::measure_operations(o.config, o.length, o.devices, 0, device);
  double sum = 0;
  for (const plan::MeasuredOperation& x : operations) sum += x.us * static_cast<double>(x.count);
  fmt::print("{:>6} {:>10} {:>10} {:>6}  operation\n", "count", "us of one", "us of all", "share");
  for (const plan::MeasuredOperation& x : operations) {
    const double all = x.us * static_cast<double>(x.count);
    fmt::print("{:>6} {:>10.2f} {:>10.1f} {:>5.1f}%  {}\n", x.count, x.us, all, 100 * all / sum,
               x.key);
  }
  fmt::print("{:>6} {:>10} {:>10.1f}\n", "", "", sum);
  if (o.machine.empty()) return 0;
  plan::Machine m = machine_to_extend(o.machine, device);
  for (const plan::MeasuredOperation& x : operations) m.operations[x.key] = x.us;
  write_durable_file(o.machine, plan::to_toml(m));
  log_info(fmt::format("{}: {} operations written", o.machine, operations.size()));
  return 0;
}

}  // namespace saturate::apps
