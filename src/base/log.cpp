// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

namespace saturate {
namespace {

LogLevel initial_level() noexcept {
  const char* verbose = std::getenv("SATURATE_VERBOSE");
  const bool wanted = verbose && std::string_view(verbose).find("log") != std::string_view::npos;
  return wanted ? LogLevel::debug : LogLevel::info;
}

std::atomic<LogLevel> level_now{initial_level()};
std::mutex output_mutex;     // orders lines and guards progress_open
bool progress_open = false;  // the cursor stands behind a progress line

void write_all(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;  // nobody reads standard error: nothing left to tell
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Errors and warnings take one line each, whatever file names and quoted text hold.
std::string printable(LogLevel level, std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c == '\n' && level <= LogLevel::warning) c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n') c = '?';
    if (c == 0x7F) c = '?';
  }
  return out;
}

const char* prefix_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::error:
      return "saturate: ";
    case LogLevel::warning:
      return "saturate: warning: ";
    case LogLevel::info:
      return "";
    case LogLevel::debug:
      return "debug: ";
  }
  return "";
}

}  // namespace

void set_log_level(LogLevel level) noexcept { level_now = level; }
LogLevel log_level() noexcept { return level_now; }

void log_line(LogLevel level, std::string_view message) noexcept {
  if (level > level_now.load(std::memory_order_relaxed)) return;
  try {
    const std::string line = prefix_of(level) + printable(level, message) + "\n";
    const std::lock_guard lock(output_mutex);
    if (progress_open) write_all("\n");
    progress_open = false;
    write_all(line);
  } catch (...) {
    // Out of memory for a message: the message is lost, the work goes on.
  }
}

void log_progress(std::string_view message) noexcept {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (!terminal) return log_line(LogLevel::info, message);
  if (level_now.load(std::memory_order_relaxed) < LogLevel::info) return;
  try {
    const std::string line =
        "\r\x1b[2K" + printable(LogLevel::info, message);  // back to column 1, clear the line
    const std::lock_guard lock(output_mutex);
    write_all(line);
    progress_open = true;
  } catch (...) {
    // As above.
  }
}

}  // namespace saturate
