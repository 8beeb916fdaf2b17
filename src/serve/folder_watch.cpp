// SPDX-License-Identifier: Apache-2.0
#include "serve/folder_watch.h"

#include <sys/stat.h>

#include <filesystem>

namespace saturate::serve {

FolderWatch::FolderWatch(std::string folder) : folder_(std::move(folder)), first_(look(folder_)) {}

std::map<std::string, FolderWatch::File> FolderWatch::look(const std::string& folder) {
  std::map<std::string, File> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    struct stat info {};
    if (stat(entry.path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    files[entry.path().filename()] = {
        .size = info.st_size,
        .time_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec,
        .inode = info.st_ino};
  }
  return files;
}

std::string FolderWatch::change() const {
  const std::map<std::string, File> now = look(folder_);
  for (const auto& [name, file] : first_) {
    const auto found = now.find(name);
    if (found == now.end()) return name + " is gone";
    if (found->second != file) return name + " was written again";
  }
  for (const auto& [name, file] : now)
    if (!first_.contains(name)) return name + " is new";
  return {};
}

}  // namespace saturate::serve
