// SPDX-License-Identifier: Apache-2.0
#include "lab/measure.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace saturate::lab {
namespace {

constexpr int64_t kWarmUp = 10;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

rusage usage() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return u;
}

}  // namespace

Measured measure(std::string_view name, Remedy remedy, int64_t steps, Device device) {
  if (steps < 1)
    throw Error(Errc::invalid_argument, "lab",
                "steps is " + std::to_string(steps) + "; at least 1 is needed");
  const std::unique_ptr<Program> program = make_program(name, remedy, device);
  Measured m;
  m.program = name;
  m.remedy = remedy;
  m.steps = steps;

  for (int64_t i = 0; i < kWarmUp; ++i) program->step();
  program->finish();
  if (program->alone()) {
    const int64_t repeats = std::clamp<int64_t>(steps / 20, 10, 100);
    program->finish();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < repeats; ++i) program->alone();
    program->finish();
    m.device_ms = 1e3 * seconds_since(begin) / static_cast<double>(repeats);
  }

  if (Marks* marks = program->marks()) marks->clear();
  const rusage before = usage();
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < steps; ++i) program->step();
  program->finish();
  m.seconds = seconds_since(begin);
  const rusage after = usage();
  const auto n = static_cast<double>(steps);
  m.step_ms = 1e3 * m.seconds / n;
  m.voluntary = static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) / n;
  m.involuntary = static_cast<double>(after.ru_nivcsw - before.ru_nivcsw) / n;
  if (remedy == Remedy::applied) return m;
  if (Marks* marks = program->marks())
    m.planted_ms = marks->total_ms() / n;
  else if (m.device_ms >= 0)
    m.planted_ms = std::max(0.0, m.step_ms - m.device_ms);
  return m;
}

std::string to_json(const Measured& m) {
  return fmt::format(
      R"({{"program":"{}","remedy":{},"steps":{},"seconds":{:.6f},"step_ms":{:.5f},"planted_ms":{:.5f},)"
      R"("device_ms":{},"voluntary":{:.3f},"involuntary":{:.3f}}})",
      m.program, m.remedy == Remedy::applied, m.steps, m.seconds, m.step_ms, m.planted_ms,
      m.device_ms < 0 ? "null" : fmt::format("{:.5f}", m.device_ms), m.voluntary, m.involuntary);
}

}  // namespace saturate::lab
