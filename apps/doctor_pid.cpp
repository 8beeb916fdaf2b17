// SPDX-License-Identifier: Apache-2.0
// `saturate doctor --pid N`: a running process from outside, through the driver and /proc.
#include <chrono>
#include <csignal>
#include <thread>

#include "apps/commands.h"
#include "apps/report_output.h"
#include "observe/system/sample_process.h"

namespace saturate::apps {
namespace {

// GPM needs 100 ms; the driver's own utilisation changes every 1/6 to 1 s.
constexpr double kPeriod = 0.2;

volatile std::sig_atomic_t g_stop = 0;

bool sleep_unless_stopped(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!g_stop && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return !g_stop;
}

}  // namespace

int run_doctor_pid(const DoctorPidOptions& o) {
  check_report_path("doctor", o.output);
  std::string why;
  auto monitor = observe::GpuMonitor::open(why);
  // Slow PCIe reads would stretch the samples on chips without GPM.
  observe::Sampler sampler(std::move(monitor), why, observe::ProcessReader(o.proc),
                           {.gpus = {}, .pcie = false, .also = {o.pid}});
  std::signal(SIGINT, [](int) { g_stop = 1; });  // the report of what was seen so far
  const observe::ProcessReport r =
      observe::sample_process(sampler, o.pid, o.duration, kPeriod, sleep_unless_stopped);
  std::signal(SIGINT, SIG_DFL);
  const std::string text = o.json ? observe::process_json(r) : observe::process_text(r);
  deliver_report("doctor", text, o.output);
  return 0;
}

}  // namespace saturate::apps
