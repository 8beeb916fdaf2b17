// SPDX-License-Identifier: Apache-2.0
// `saturate bench links`, `saturate bench step --operations`: what a machine file is made of; and
// `saturate bench step --roofline`.
#include <fmt/format.h>

#include <filesystem>

#include "apps/bench_against.h"
#include "apps/commands.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "parallel/communicator.h"
#include "plan/measure.h"
#include "plan/roofline.h"
#include "train/model_setup.h"

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

namespace {

// Microseconds of one step: measured, floor, gap, floor over measured.
void print(const plan::RooflineRow& r, const plan::Roofline& of) {
  fmt::print("{:>10.1f} {:>10.1f} {:>10.1f} {:>5.1f}% {:>6.1f}% {:>6}  {}\n", r.us, r.floor_us,
             r.gap_us(), 100 * r.us / of.us, r.us > 0 ? 100 * r.floor_us / r.us : 0.0, r.count,
             r.key);
}

void print(const char* of, const std::vector<plan::RooflineRow>& rows, const plan::Roofline& r) {
  fmt::print("{:>10} {:>10} {:>10} {:>6} {:>7} {:>6}  {}\n", "us", "floor", "gap", "share",
             "of roof", "count", of);
  for (const plan::RooflineRow& row : rows) print(row, r);
}

}  // namespace

int run_bench_roofline(const BenchOptions& o) {
  const Device device = parse_device(o.config.train.device);
  use_device(device);
  const plan::Machine machine =
      o.machine.empty() ? plan::measure_device(device) : plan::read_machine(o.machine);
  const plan::Roofline r = plan::measure_roofline(machine, o.config, o.length, device);
  print("operation", r.operations, r);
  print("class", r.classes, r);
  std::string classes;
  for (const plan::RooflineRow& row : r.classes)
    classes += fmt::format(R"({}"{}":[{:.1f},{:.1f}])", classes.empty() ? "" : ",", row.key, row.us,
                           row.floor_us);
  double tflops = 0;
  for (const auto& [type, rate] : machine.compute.tflops) tflops = std::max(tflops, rate);
  const std::string row = fmt::format(
      R"({{"what":"roofline","model":"{}","target_tokens":{},"sum_us":{:.1f},"floor_us":{:.1f},"distance":{:.4f},"product_tflops":{:.1f},"bandwidth_gbs":{:.0f},"classes_us_floor":{{{}}}}})",
      train::preset_name(o.config), r.target_tokens, r.us, r.floor_us,
      r.us > 0 ? 1 - r.floor_us / r.us : 0.0, tflops, machine.compute.bandwidth_gbs, classes);
  fmt::print("{}\n", complete_row(row, device_info(device).name, o.arguments));
  return 0;
}

}  // namespace saturate::apps
