// SPDX-License-Identifier: Apache-2.0
// The controlling terminal as a full screen, given back as it was however the program ends, SIGKILL
// apart. One at a time; uses the signal handlers of the process.
#pragma once
#include <string>
#include <vector>

namespace saturate::observe {

class Terminal {
 public:
  // Errors: unsupported when standard input or output is no terminal.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  struct Size {
    int width = 80, height = 24;
  };
  Size size() const;
  void draw(const std::vector<std::string>& lines);
  // True once after what stood on the screen was lost: a new size, or back from Ctrl-Z.
  bool redraw();
  // Bytes of the keyboard, after at most `seconds`; earlier also when the size changes or a signal
  // to end arrives. Empty when nothing was typed.
  std::string wait(double seconds);
  // SIGINT, SIGTERM, SIGHUP or SIGQUIT if one came, else 0; or SIGHUP when the keyboard is gone.
  int ended_by() const;

 private:
  bool gone_ = false;
};

}  // namespace saturate::observe
