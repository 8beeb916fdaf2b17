// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/durable_file.h"
#include "base/error.h"
#include "train/checkpoint_manifest.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemporary = ".tmp-";  // being written
constexpr std::string_view kRemoved = ".old-";    // being removed

// Step numbers sort as text up to 99,999,999; list() sorts by number all the same.
std::string folder_name(int64_t step) { return fmt::format("{}{:08}", kStep, step); }

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kStep.size(), end, step);
  if (result.ec != std::errc() || result.ptr != end || step < 0) return std::nullopt;
  return step;
}

void check(const std::error_code& failed, const std::string& path) {
  if (failed) throw Error(Errc::io, "checkpoint", fmt::format("{}: {}", path, failed.message()));
}

void sync_tree(const std::string& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    entry.is_directory() ? sync_folder(entry.path().string()) : sync_file(entry.path().string());
  }
  sync_folder(folder);
}

// Puts `from` in the place of `to`. A folder that is there already changes places with it in one
// step where the kernel can do that, so that one of them is under the name at every moment.
void rename_over(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  std::error_code failed;
  if (errno != ENOENT) fs::remove_all(to, failed);
  check(failed, to);
  fs::rename(from, to, failed);
  check(failed, to);
}

}  // namespace

CheckpointStore::CheckpointStore(std::string run_folder)
    : root_((fs::path(std::move(run_folder)) / "checkpoints").string()) {}

std::string CheckpointStore::path(const std::string& name) const {
  return (fs::path(root_) / name).string();
}

void CheckpointStore::remove_leftovers() {
  std::error_code failed;
  if (!fs::exists(root_)) return;
  for (const auto& entry : fs::directory_iterator(root_, failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTemporary) || name.starts_with(kRemoved)) {
      fs::remove_all(entry.path(), failed);
      check(failed, entry.path().string());
    }
  }
  check(failed, root_);
}

std::string CheckpointStore::save(int64_t step, uint64_t bytes_needed,
                                  const std::function<void(const std::string& folder)>& write) {
  std::error_code failed;
  fs::create_directories(root_, failed);
  check(failed, root_);
  const std::string name = folder_name(step);
  const std::string temporary = path(std::string(kTemporary) + name);
  fs::remove_all(temporary, failed);
  const uint64_t free_bytes = free_disk_bytes(root_);
  if (bytes_needed > free_bytes) {
    throw Error(Errc::io, "checkpoint",
                fmt::format("step {} is not saved: it needs {} bytes and {} has {} free; free some "
                            "space. Earlier checkpoints are intact",
                            step, bytes_needed, root_, free_bytes));
  }
  try {
    fs::create_directory(temporary, failed);
    check(failed, temporary);
    write(temporary);
    write_manifest(temporary);
    sync_tree(temporary);
    rename_over(temporary, path(name));
    sync_folder(root_);
  } catch (const std::exception& e) {
    fs::remove_all(temporary, failed);
    const auto* error = dynamic_cast<const Error*>(&e);
    throw Error(error != nullptr ? error->code() : Errc::io, "checkpoint",
                fmt::format("step {} is not saved: {}. {} bytes are needed in all, {} are free. "
                            "Earlier checkpoints are intact",
                            step, e.what(), bytes_needed, free_disk_bytes(root_)));
  }
  fs::remove_all(temporary, failed);  // the replaced checkpoint, if there was one
  write_durable_file(path("latest"), name + "\n");
  return path(name);
}

std::vector<Checkpoint> CheckpointStore::list() const {
  std::vector<Checkpoint> all;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(root_, failed)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && entry.is_directory()) all.push_back({*step, entry.path().string()});
  }
  std::sort(all.begin(), all.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.step < b.step; });
  return all;
}

std::optional<std::string> CheckpointStore::damage(const std::string& folder) {
  return manifest_damage(folder);
}

std::optional<Checkpoint> CheckpointStore::newest_valid(std::vector<std::string>& problems) const {
  std::vector<Checkpoint> all = list();
  std::reverse(all.begin(), all.end());
  for (const Checkpoint& c : all) {
    const auto reason = damage(c.folder);
    if (!reason) return c;
    problems.push_back(fmt::format("{}: {}", c.folder, *reason));
  }
  return std::nullopt;
}

void CheckpointStore::mark_best(int64_t step) {
  if (!fs::is_directory(path(folder_name(step)))) {
    throw Error(Errc::invalid_argument, "checkpoint",
                fmt::format("{}: there is no checkpoint of step {} to call the best", root_, step));
  }
  write_durable_file(path("best"), folder_name(step) + "\n");
}

std::optional<Checkpoint> CheckpointStore::best() const {
  std::ifstream in(path("best"));
  std::string name;
  std::getline(in, name);
  const auto step = step_of(name);
  if (!step || !fs::is_directory(path(name))) return std::nullopt;
  return Checkpoint{*step, path(name)};
}

void CheckpointStore::remove(const std::string& name) {
  // The rename takes it out of list() at once: a removal that is cut short leaves no torn
  // checkpoint.
  const std::string removed = path(std::string(kRemoved) + name);
  std::error_code failed;
  fs::remove_all(removed, failed);
  fs::rename(path(name), removed, failed);
  check(failed, path(name));
  fs::remove_all(removed, failed);
  check(failed, removed);
}

void CheckpointStore::prune(int64_t keep_last) {
  const std::vector<Checkpoint> all = list();
  const std::optional<Checkpoint> kept = best();
  const auto newest = static_cast<size_t>(std::max<int64_t>(keep_last, 1));
  for (size_t i = 0; i + newest < all.size(); ++i) {
    if (!kept || kept->step != all[i].step) remove(fs::path(all[i].folder).filename().string());
  }
}

}  // namespace saturate::train
