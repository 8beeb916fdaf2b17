// SPDX-License-Identifier: Apache-2.0
// Messages to standard error, whole lines at a time, from any thread.
#pragma once
#include <string_view>

namespace saturate {

enum class LogLevel { error, warning, info };

// Lines above this level are dropped. Starts at info; --quiet sets warning.
void set_log_level(LogLevel level) noexcept;

// One line each, without a line end. Control characters of `message` are replaced by '?', so that
// text from a file cannot drive the terminal. Never throws.
void log_line(LogLevel level, std::string_view message) noexcept;
inline void log_error(std::string_view message) noexcept { log_line(LogLevel::error, message); }
inline void log_warning(std::string_view message) noexcept { log_line(LogLevel::warning, message); }
inline void log_info(std::string_view message) noexcept { log_line(LogLevel::info, message); }

}  // namespace saturate
