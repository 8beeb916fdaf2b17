// SPDX-License-Identifier: Apache-2.0
#include "apps/report_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"

namespace saturate::apps {
namespace {

bool to_standard_output(const std::string& path) { return path.empty() || path == "-"; }

}  // namespace

void check_report_path(const char* where, const std::string& path) {
  if (to_standard_output(path)) return;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status))
    throw Error(Errc::invalid_argument, where, path + ": is a folder; give a file");
  if (fs::exists(status) && !fs::is_regular_file(status)) {  // a device, a pipe: written in place
    if (access(path.c_str(), W_OK) == 0) return;
    throw Error(Errc::io, where, path + ": may not be written; give another file");
  }
  // A file is replaced by a new one beside it, so that only its folder must be writable.
  const fs::path folder = fs::absolute(path, error).parent_path();
  if (!fs::is_directory(folder, error) || access(folder.c_str(), W_OK) != 0)
    throw Error(Errc::io, where,
                fmt::format("{}: cannot be written; see that {} is a folder that you may write to",
                            path, folder.string()));
}

void deliver_report(const char* where, const std::string& text, const std::string& path) {
  if (to_standard_output(path)) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw Error(Errc::io, where, "cannot write to standard output; is the disk full?");
    return;
  }
  DurableFile file(path);
  file.write(text.data(), text.size());
  file.commit();
  log_info("wrote " + path);
}

}  // namespace saturate::apps
