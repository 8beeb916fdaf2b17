// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

namespace saturate {
namespace {

std::atomic<LogLevel> level_now{LogLevel::info};
std::mutex output_mutex;  // orders lines

void write_all(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;  // nobody reads standard error: nothing left to report
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
  }
  return "";
}

}  // namespace

void set_log_level(LogLevel level) noexcept { level_now = level; }

void log_line(LogLevel level, std::string_view message) noexcept {
  if (level > level_now.load(std::memory_order_relaxed)) return;
  try {
    const std::string line = prefix_of(level) + printable(level, message) + "\n";
    const std::lock_guard lock(output_mutex);
    write_all(line);
  } catch (...) {
    // Out of memory for a message: the message is lost, the work goes on.
  }
}

}  // namespace saturate
