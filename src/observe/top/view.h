// SPDX-License-Identifier: Apache-2.0
// What the live view shows and how keys change it; draws nothing and knows no terminal.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/system/snapshot.h"

namespace saturate::observe {

enum class Key {
  character,
  up,
  down,
  page_up,
  page_down,
  home,
  end,
  left,
  right,
  enter,
  escape,
  backspace,
  interrupt,  // Ctrl-C as a byte
  f1,
  f2,
  f3,
  f4,
  f5,
  f6,
  f7,
  f8,
  f9,
  f10,
};
struct KeyPress {
  Key key = Key::character;
  char character = 0;  // of Key::character
};
// All key presses in bytes as a terminal sends them (xterm, Linux console, rxvt). An escape
// sequence that is not known is dropped whole.
std::vector<KeyPress> decode_keys(std::string_view bytes);

enum class SortBy { gpu, pid, user, memory, utilisation, cpu, resident, switches, count };
const char* sort_name(SortBy by);

// History of one GPU, shares 0 to 1, the newest last.
struct GpuHistory {
  std::deque<std::optional<double>> utilisation, memory;
};

struct View {
  bool ascii = false, colour = true, read_only = false;
  bool tree = false, paused = false, help = false, whole_command = false, reverse = false;
  SortBy sort = SortBy::gpu;
  std::string filter;    // shown: processes whose pid, user, name, command or verdict contains it
  int64_t selected = 0;  // pid
  double interval_s = 1;
  enum class Mode { normal, filter, choose_signal, confirm } mode = Mode::normal;
  int signal = 0;       // that is to be confirmed
  std::string message;  // until the next key
};

// What the keys ask of the program.
struct Action {
  bool quit = false;
  int64_t kill_pid = 0;  // send `signal` to it
  int signal = 0;
  int64_t kill_start_ticks = 0;
};

// Whether pid, user, name, command or verdict contains `filter`.
bool matches_filter(const ProcessView& process, const std::string& filter);

// The processes in the order and number in which they are shown.
std::vector<const ProcessView*> visible_processes(const View& view, const Snapshot& s);

// Changes `view` for one key. Killing takes a signal and a "y"; it is refused for a process that is
// not seen here, was guessed, or when the view is read-only.
Action press(View& view, const Snapshot& s, KeyPress key);

}  // namespace saturate::observe
