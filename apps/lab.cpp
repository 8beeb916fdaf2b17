// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "base/error.h"
#include "base/json.h"
#include "lab/measure.h"
#include "runtime/device.h"

namespace saturate::apps {
namespace {

using lab::Measured;
using lab::Remedy;

constexpr int kProcesses = 4;

int list() {
  for (const lab::Entry& e : lab::catalogue()) {
    fmt::print("{:<22} {}\n", e.name, e.planted);
    if (e.remedy.empty())
      fmt::print("{:<22}   nothing is wrong; verdict {}\n", "", e.verdict);
    else
      fmt::print("{:<22}   remedy: {}; verdict {}\n", "", e.remedy, e.verdict);
  }
  return 0;
}

std::string text_of(const Measured& m) {
  std::string text =
      fmt::format("{}{}: {} steps of {:.4f} ms", m.program,
                  m.remedy == Remedy::applied ? " with its remedy" : "", m.steps, m.step_ms);
  if (m.remedy == Remedy::none && m.planted_ms > 0)
    text += fmt::format(", of which what is planted costs {:.4f} ms", m.planted_ms);
  if (m.device_ms >= 0) text += fmt::format("; the device's part alone {:.4f} ms", m.device_ms);
  return text + fmt::format("; {:.2f} voluntary and {:.2f} involuntary context switches a step\n",
                            m.voluntary, m.involuntary);
}

int run(const LabOptions& o) {
  const lab::Entry& entry = lab::find_entry(o.program);
  if (o.remedy && entry.remedy.empty())
    throw Error(Errc::invalid_argument, "lab",
                "nothing is wrong with '" + o.program + "': it has no remedy");
  const Measured m = lab::measure(entry.name, o.remedy ? Remedy::applied : Remedy::none, o.steps,
                                  parse_device(o.device));
  fmt::print("{}", o.json ? lab::to_json(m) + "\n" : text_of(m));
  return 0;
}

// The same program in `kProcesses` processes at once, each started by this program's own file.
std::vector<Json> run_processes(const LabOptions& o) {
  std::array<std::FILE*, kProcesses> outputs{};
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = fmt::format("'{}' lab run launch_loop --json --steps {} --device {}",
                                          self, o.steps, o.device);
  for (std::FILE*& out : outputs) {
    out = popen(command.c_str(), "r");
    if (out == nullptr) throw Error(Errc::io, "lab", "cannot start " + self);
  }
  std::vector<Json> results;
  for (std::FILE* out : outputs) {
    std::string line;
    for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) line += static_cast<char>(c);
    if (pclose(out) != 0) throw Error(Errc::device, "lab", "a process of the comparison failed");
    results.push_back(parse_json(line, "a process of the comparison"));
  }
  return results;
}

struct Row {
  std::string name;
  double cycle_ms, busy, total_s, voluntary, involuntary;
};

Row row_of(std::string name, const Measured& m, double units) {
  return {std::move(name),   m.step_ms / units,   m.device_ms / m.step_ms,
          m.seconds / units, m.voluntary / units, m.involuntary / units};
}

int compare(const LabOptions& o) {
  const Device device = parse_device(o.device);
  const auto measure = [&](std::string_view name, Remedy remedy) {
    return lab::measure(name, remedy, o.steps, device);
  };
  std::vector<Row> rows;
  const Measured plain = measure("launch_loop", Remedy::none);
  rows.push_back(row_of("as it is", plain, 1));
  rows.push_back(row_of("CUDA graphs of 50", measure("launch_loop", Remedy::applied), 1));
  rows.push_back(row_of("batch x10", measure("launch_batch", Remedy::none), 1));
  Row several{fmt::format("{} processes", kProcesses), 0, 0, 0, 0, 0};
  const std::vector<Json> results = run_processes(o);
  for (const Json& r : results) {
    JsonFields f(r, "lab", "a process of the comparison");
    several.cycle_ms += f.number("step_ms") / kProcesses / kProcesses;
    several.total_s = std::max(several.total_s, f.number("seconds") / kProcesses);
    several.voluntary += f.number("voluntary") / kProcesses;
    several.involuntary += f.number("involuntary") / kProcesses;
  }
  several.busy = std::min(1.0, plain.device_ms / several.cycle_ms);
  rows.push_back(several);
  if (o.json) {
    Json j = Json::Array{};
    for (const Row& r : rows)
      j.push_back({{"variant", r.name},
                   {"cycle_ms", r.cycle_ms},
                   {"device_busy", r.busy},
                   {"seconds", r.total_s},
                   {"voluntary", r.voluntary},
                   {"involuntary", r.involuntary}});
    fmt::print("{}\n", j.dump());
    return 0;
  }
  fmt::print("200 small kernels a cycle, {} cycles; all per cycle of the same work\n\n", o.steps);
  fmt::print("{:<20} {:>10} {:>8} {:>9} {:>11} {:>18}\n", "variant", "cycle", "speed", "GPU busy",
             "total", "context switches");
  for (const Row& r : rows)
    fmt::print("{:<20} {:>7.4f} ms {:>7.2f}x {:>8.1f}% {:>9.3f} s {:>9.2f} + {:.2f}\n", r.name,
               r.cycle_ms, rows[0].cycle_ms / r.cycle_ms, 100 * r.busy, r.total_s, r.voluntary,
               r.involuntary);
  fmt::print(
      "\nGPU busy: the time of the same kernels in one graph, as a share of the cycle. Context "
      "switches: voluntary + involuntary a cycle.\n");
  return 0;
}

}  // namespace

int run_lab(const LabOptions& o) {
  switch (o.verb) {
    case LabOptions::Verb::list:
      return list();
    case LabOptions::Verb::run:
      return run(o);
    case LabOptions::Verb::compare:
      return compare(o);
  }
  return 0;
}

}  // namespace saturate::apps
