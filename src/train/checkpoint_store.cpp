// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "model/folder_manifest.h"
#include "train/whole_folder.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";        // a checkpoint
constexpr std::string_view kModel = "best-";       // the model alone of a step that was the best
constexpr std::string_view kTemporary = ".tmp-";   // being written
constexpr std::string_view kRemoved = ".old-";     // being removed
constexpr std::string_view kDamaged = "damaged-";  // set aside

// Step numbers sort as text up to 99,999,999; list() sorts by number all the same.
std::string folder_name(std::string_view kind, int64_t step) {
  return fmt::format("{}{:08}", kind, step);
}

std::optional<int64_t> step_of(std::string_view kind, const std::string& name) {
  if (!name.starts_with(kind)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kind.size(), end, step);
  if (result.ec != std::errc() || result.ptr != end || step < 0) return std::nullopt;
  return step;
}

void check(const std::error_code& failed, const std::string& path) {
  if (failed) throw Error(Errc::io, "checkpoint", fmt::format("{}: {}", path, failed.message()));
}

}  // namespace

CheckpointStore::CheckpointStore(std::string run_folder)
    : root_((fs::path(std::move(run_folder)) / "checkpoints").string()) {}

std::string CheckpointStore::path(const std::string& name) const {
  return (fs::path(root_) / name).string();
}

void CheckpointStore::remove_leftovers() {
  std::error_code failed;
  if (!fs::exists(root_, failed)) return check(failed, root_);
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator at(root_, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kTemporary) || name.starts_with(kRemoved)) leftovers.push_back(at->path());
  }
  check(failed, root_);
  for (const fs::path& path : leftovers) {
    fs::remove_all(path, failed);
    check(failed, path.string());
  }
}

std::string CheckpointStore::save(int64_t step, uint64_t bytes_needed,
                                  const std::function<void(const std::string& folder)>& write,
                                  const Together& ranks) {
  const std::string name = folder_name(kStep, step);
  ranks.first([&] {
    std::error_code failed;
    fs::create_directories(root_, failed);
    check(failed, root_);
    fs::remove_all(unfinished_folder(path(name)), failed);
    const uint64_t free_bytes = free_disk_bytes(root_);
    if (bytes_needed > free_bytes) {
      throw Error(
          Errc::io, "checkpoint",
          fmt::format("step {} is not saved: it needs {} bytes and {} has {} free; free some "
                      "space. Earlier checkpoints are intact",
                      step, bytes_needed, root_, free_bytes));
    }
  });
  try {
    write_whole_folder(path(name), step, write, ranks);
  } catch (const std::exception& e) {
    const auto* error = dynamic_cast<const Error*>(&e);
    const Errc code = error != nullptr ? error->code() : Errc::io;
    const std::string space = code == Errc::io
                                  ? fmt::format(". {} bytes are needed in all, {} are free",
                                                bytes_needed, free_disk_bytes(root_))
                                  : "";
    throw Error(code, "checkpoint",
                fmt::format("step {} is not saved: {}{}. Earlier checkpoints are intact", step,
                            e.what(), space));
  }
  ranks.first([&] { write_durable_file(path("latest"), name + "\n"); });
  return path(name);
}

std::vector<Checkpoint> CheckpointStore::folders(std::string_view kind) const {
  // Whatever else has such a name, a link to nowhere or to itself too, does not count.
  std::vector<Checkpoint> all;
  std::error_code failed, unknown;
  for (fs::directory_iterator at(root_, failed), end; !failed && at != end; at.increment(failed)) {
    const auto step = step_of(kind, at->path().filename().string());
    if (step && at->is_directory(unknown)) all.push_back({*step, at->path().string()});
  }
  std::sort(all.begin(), all.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.step < b.step; });
  return all;
}

std::vector<Checkpoint> CheckpointStore::list() const { return folders(kStep); }

std::optional<std::string> CheckpointStore::damage(const std::string& folder) {
  return model::manifest_damage(folder);
}

std::optional<Checkpoint> CheckpointStore::newest_valid(std::vector<std::string>& problems,
                                                        const Together& ranks) const {
  std::vector<uint64_t> steps;
  for (const Checkpoint& c : list()) steps.push_back(static_cast<uint64_t>(c.step));
  steps = ranks.from(0, std::move(steps));
  for (size_t i = steps.size(); i-- > 0;) {
    const auto step = static_cast<int64_t>(steps[i]);
    const std::string folder = path(folder_name(kStep, step));
    const auto mine = model::manifest_damage(folder, {ranks.rank(), ranks.size()});
    const std::string reason = ranks.first_text(mine.value_or(""));
    if (reason.empty()) return Checkpoint{step, folder};
    problems.push_back(fmt::format("{}: {}", folder, reason));
  }
  return std::nullopt;
}

std::optional<std::string> CheckpointStore::folder_of(int64_t step) const {
  std::error_code unknown;
  const std::string folder = path(folder_name(kStep, step));
  return fs::is_directory(folder, unknown) ? std::optional(folder) : std::nullopt;
}

void CheckpointStore::set_aside_after(int64_t step) {
  std::error_code failed;
  for (const Checkpoint& c : list()) {
    if (c.step <= step) continue;
    const std::string name = fs::path(c.folder).filename().string();
    const std::string aside = path(std::string(kDamaged) + name);
    fs::remove_all(aside, failed);
    fs::rename(c.folder, aside, failed);
    check(failed, c.folder);
    log_warning(fmt::format("{} is now {}: the run goes on before it; remove it to free its space",
                            c.folder, fs::path(aside).filename().string()));
  }
}

void CheckpointStore::keep_model(int64_t step,
                                 const std::function<void(const std::string& folder)>& write) {
  std::error_code failed;
  fs::create_directories(root_, failed);
  check(failed, root_);
  const std::string name = folder_name(kModel, step);
  write_whole_folder(path(name), step, write);
  write_durable_file(path("best"), name + "\n");
}

std::optional<Checkpoint> CheckpointStore::whole_model(int64_t step) const {
  for (const std::string_view kind : {kModel, kStep}) {
    const std::string folder = path(folder_name(kind, step));
    std::error_code unknown;
    if (fs::is_directory(folder, unknown) && !damage(folder)) return Checkpoint{step, folder};
  }
  return std::nullopt;
}

void CheckpointStore::restore_best(int64_t step) {
  const std::string name = folder_name(kModel, step);
  std::error_code failed;
  if (fs::is_directory(path(name), failed)) return write_durable_file(path("best"), name + "\n");
  fs::remove(path("best"), failed);
  check(failed, path("best"));
}

std::optional<Checkpoint> CheckpointStore::best() const {
  std::ifstream in(path("best"));
  std::string name;
  std::getline(in, name);
  auto step = step_of(kModel, name);
  if (!step) step = step_of(kStep, name);  // earlier versions marked a checkpoint
  std::error_code unknown;
  if (!step || !fs::is_directory(path(name), unknown)) return std::nullopt;
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
  const auto newest = static_cast<size_t>(std::max<int64_t>(keep_last, 1));
  for (size_t i = 0; i + newest < all.size(); ++i) {
    remove(fs::path(all[i].folder).filename().string());
  }
}

void CheckpointStore::prune_models(const std::vector<int64_t>& keep) {
  for (const Checkpoint& m : folders(kModel)) {
    if (std::find(keep.begin(), keep.end(), m.step) == keep.end()) {
      remove(fs::path(m.folder).filename().string());
    }
  }
}

}  // namespace saturate::train
