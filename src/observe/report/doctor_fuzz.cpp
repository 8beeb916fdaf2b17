// SPDX-License-Identifier: Apache-2.0
// Any trace gets its three reports or a clean error.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "observe/read/input.h"
#include "observe/read/kineto.h"
#include "observe/report/diagnosis.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate::observe;
  try {
    const auto capture = make_capture(read_kineto(*memory_input(data, size, "fuzz")));
    const Diagnosis g = diagnose(*capture, "fuzz");
    render_text(g);
    render_json(g);
    render_html(g);
  } catch (const saturate::Error&) {
  }
  return 0;
}
