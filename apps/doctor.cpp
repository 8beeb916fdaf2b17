// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "observe/report/compare.h"
#include "observe/report/diagnosis.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/perfetto.h"
#include "observe/report/text.h"

namespace saturate::apps {
namespace {

void deliver(const std::string& text, const std::string& path) {
  if (path.empty() || path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw Error(Errc::io, "doctor", "cannot write to standard output; is the disk full?");
    return;
  }
  DurableFile file(path);
  file.write(text.data(), text.size());
  file.commit();
  log_info("wrote " + path);
}

}  // namespace

int run_doctor(const DoctorOptions& o) {
  if (o.compare.size() == 2) {
    std::vector<observe::Gate> gates;
    for (const std::string& text : o.fail_if) gates.push_back(observe::parse_gate(text));
    const observe::Comparison c =
        observe::compare(observe::diagnose(o.compare[0], {.warm_up = o.warm_up}),
                         observe::diagnose(o.compare[1], {.warm_up = o.warm_up}), gates);
    deliver(c.text, o.output);
    for (const std::string& line : c.failed) log_error("[doctor] --fail-if: " + line);
    return c.failed.empty() ? 0 : kExitMachine;
  }
  if (o.file.empty())
    throw Error(Errc::invalid_argument, "doctor",
                "no capture; give a trace of torch.profiler or Nsight Systems: saturate doctor "
                "trace.json.gz");
  const std::unique_ptr<observe::Capture> capture = observe::open_capture(o.file);
  const observe::Diagnosis diagnosis = observe::diagnose(*capture, o.file, {.warm_up = o.warm_up});
  if (o.format == "perfetto") {
    if (static_cast<int64_t>(capture->trace().records()) < diagnosis.analysis.records)
      throw Error(Errc::unsupported, "doctor",
                  o.file + ": is too long for one Perfetto trace; record a shorter capture");
    deliver(observe::render_perfetto(capture->trace()), o.output);
    return 0;
  }
  deliver(o.format == "json"   ? observe::render_json(diagnosis)
          : o.format == "html" ? observe::render_html(diagnosis)
                               : observe::render_text(diagnosis),
          o.output);
  return 0;
}

}  // namespace saturate::apps
