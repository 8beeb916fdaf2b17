// SPDX-License-Identifier: Apache-2.0
// Bytes as a keyboard sends them, as names of processes and as a small terminal: no line is ever
// wider than the terminal, and nothing is killed that is not certain.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "observe/top/json.h"
#include "observe/top/plot.h"
#include "observe/top/screen.h"

using namespace saturate::observe;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  View view;
  view.colour = false;
  Snapshot s;
  s.gpus.resize(2);
  s.gpus[1].reading.lost = bytes;
  for (int i = 0; i < 3; ++i) {
    ProcessView p;
    p.pid = 10 + i;
    p.seen = i != 1;
    p.worker = i == 2;
    p.name = p.user = p.command = bytes;
    p.gpus.resize(i == 0 ? 1 : 0);
    s.processes.push_back(p);
  }
  for (const KeyPress& key : decode_keys(bytes)) {
    const Action action = press(view, s, key);
    if (action.kill_pid != 0 && (action.kill_pid == 11 || action.signal == 0)) std::abort();
  }
  const int width = 1 + static_cast<int>(size % 130), height = 1 + static_cast<int>(size % 31);
  for (const bool ascii : {false, true}) {
    view.ascii = ascii;
    const auto lines = draw_screen(s, {}, view, width, height);
    if (lines.size() != static_cast<size_t>(height)) std::abort();
    for (const std::string& line : lines) {
      if (columns_of(line) > width) std::abort();
      for (const char c : line) {
        if (static_cast<unsigned char>(c) < 0x20 || (ascii && static_cast<unsigned char>(c) > 0x7E))
          std::abort();
      }
    }
  }
  snapshot_json(s, false);
  snapshot_prometheus(s);
  return 0;
}
