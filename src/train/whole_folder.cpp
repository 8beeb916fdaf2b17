// SPDX-License-Identifier: Apache-2.0
#include "train/whole_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/durable_file.h"
#include "base/error.h"
#include "model/folder_manifest.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

void check(const std::error_code& failed, const std::string& path) {
  if (failed) throw Error(Errc::io, "write", fmt::format("{}: {}", path, failed.message()));
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
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

// As the first rank sees them: others may see a folder of a network later.
std::vector<model::ListedFile> listed_files(const std::string& folder, const Together& ranks) {
  std::vector<model::ListedFile> files;
  ranks.first([&] { files = model::files_to_list(folder); });
  if (ranks.size() == 1) return files;
  std::string text;
  for (const model::ListedFile& f : files) text += fmt::format("{} {}\n", f.bytes, f.name);
  std::istringstream lines(ranks.from(0, std::move(text)));
  files.clear();
  for (model::ListedFile f; lines >> f.bytes && std::getline(lines.ignore(), f.name);)
    files.push_back(f);
  return files;
}

std::vector<uint64_t> all_hashes(const std::string& folder,
                                 const std::vector<model::ListedFile>& files,
                                 const Together& ranks) {
  std::vector<uint64_t> mine;
  ranks.all([&] { mine = model::hashes_of(folder, files, {ranks.rank(), ranks.size()}); });
  std::vector<uint64_t> all(mine.size());
  for (int root = 0; root < ranks.size(); ++root) {
    const std::vector<uint64_t> theirs = ranks.from(root, mine);
    for (size_t i = 0; i < all.size(); ++i) all[i] += theirs[i];
  }
  return all;
}

}  // namespace

std::string unfinished_folder(const std::string& folder) {
  const fs::path path(folder);
  return (path.parent_path() / (".tmp-" + path.filename().string())).string();
}

void write_whole_folder(const std::string& folder, int64_t step,
                        const std::function<void(const std::string& folder)>& write,
                        const Together& ranks) {
  const std::string temporary = unfinished_folder(folder);
  std::error_code failed;
  try {
    ranks.first([&] {
      fs::remove_all(temporary, failed);
      fs::create_directory(temporary, failed);
      check(failed, temporary);
    });
    write(temporary);
    const std::vector<model::ListedFile> files = listed_files(temporary, ranks);
    const std::vector<uint64_t> hashes = all_hashes(temporary, files, ranks);
    ranks.first([&] {
      model::write_manifest(temporary, step, files, hashes);
      sync_tree(temporary);
      rename_over(temporary, folder);
      sync_folder(fs::path(folder).parent_path().string());
    });
  } catch (...) {
    if (ranks.rank() == 0) fs::remove_all(temporary, failed);
    throw;
  }
  if (ranks.rank() == 0)
    fs::remove_all(temporary, failed);  // what was there before, if anything was
}

void require_shared_folder(const std::string& folder, const Together& ranks) {
  if (ranks.size() == 1) return;
  const std::string host = host_name(), first_host = ranks.from(0, host);
  const std::string path = ranks.from(0, fmt::format("{}/.shared-{}-{}", folder, host, ::getpid()));
  ranks.first(
      [&] { write_durable_file(path, std::string(static_cast<size_t>(ranks.size()), '0')); });
  const auto refuse = [&](const std::string& reason) {
    throw Error(Errc::invalid_argument, "run",
                fmt::format("{} of rank {} on {} is not the folder of rank 0 on {} ({}): all ranks "
                            "write into the same checkpoints; give an --out on a file system that "
                            "all hosts share",
                            folder, ranks.rank(), host, first_host, reason));
  };
  ranks.all([&] {
    try {
      DurableFile file(path, DurableFile::Join{});
      file.write_at(static_cast<uint64_t>(ranks.rank()), "1", 1);
      file.commit();
    } catch (const Error& e) {
      refuse(e.what());
    }
  });
  ranks.first([&] {
    std::string written;
    std::getline(std::ifstream(path), written);
    std::error_code failed;
    fs::remove(path, failed);
    if (written != std::string(static_cast<size_t>(ranks.size()), '1'))
      throw Error(Errc::io, "run",
                  fmt::format("{} lost what several ranks wrote into one file: this file system "
                              "cannot hold the checkpoints of {} ranks; give another --out",
                              folder, ranks.size()));
  });
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
