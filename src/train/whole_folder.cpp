// SPDX-License-Identifier: Apache-2.0
#include "train/whole_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <cerrno>
#include <filesystem>

#include "base/durable_file.h"
#include "base/error.h"
#include "model/folder_manifest.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

void check(const std::error_code& failed, const std::string& path) {
  if (failed) throw Error(Errc::io, "write", fmt::format("{}: {}", path, failed.message()));
}

void sync_tree(const std::string& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    entry.is_directory() ? sync_folder(entry.path().string()) : sync_file(entry.path().string());
  }
  sync_folder(folder);
}

// Puts `from` in the place of `to`. What is there already changes places with it in one step where
// the kernel can do that, so that one of them is under the name at every moment.
void rename_over(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  std::error_code failed;
  if (errno != ENOENT) fs::remove_all(to, failed);
  check(failed, to);
  fs::rename(from, to, failed);
  check(failed, to);
}

}  // namespace

std::string unfinished_folder(const std::string& folder) {
  const fs::path path(folder);
  return (path.parent_path() / (".tmp-" + path.filename().string())).string();
}

void write_whole_folder(const std::string& folder, int64_t step,
                        const std::function<void(const std::string& folder)>& write) {
  const std::string temporary = unfinished_folder(folder);
  std::error_code failed;
  fs::remove_all(temporary, failed);
  try {
    fs::create_directory(temporary, failed);
    check(failed, temporary);
    write(temporary);
    model::write_manifest(temporary, step);
    sync_tree(temporary);
    rename_over(temporary, folder);
    sync_folder(fs::path(folder).parent_path().string());
  } catch (...) {
    fs::remove_all(temporary, failed);
    throw;
  }
  fs::remove_all(temporary, failed);  // what was there before, if anything was
}

void copy_direct_files(const std::string& from, const std::string& to) {
  std::error_code failed, unknown;
  for (fs::directory_iterator at(from, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name == "manifest.json" || !at->is_regular_file(unknown)) continue;
    fs::copy_file(at->path(), fs::path(to) / name, failed);
    check(failed, at->path().string());
  }
  check(failed, from);
}

}  // namespace saturate::train
