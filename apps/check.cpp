// SPDX-License-Identifier: Apache-2.0
// `saturate check`: whether this machine is ready to be observed.
#include "observe/check/check.h"

#include <cstdio>

#include "apps/commands.h"
#include "base/error.h"

namespace saturate::apps {

int run_check(const CheckOptions& o) {
  std::string why;
  const auto monitor = observe::GpuMonitor::open(why);
  const auto findings = observe::check_machine(
      observe::look_around(monitor.get(), why, observe::ProcessReader(o.proc)));
  const std::string text =
      o.json ? observe::findings_json(findings) : observe::findings_text(findings);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw Error(Errc::io, "check", "cannot write to standard output; is the disk full?");
  return observe::any_failed(findings) ? kExitMachine : 0;
}

}  // namespace saturate::apps
