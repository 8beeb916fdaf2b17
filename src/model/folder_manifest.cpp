// SPDX-License-Identifier: Apache-2.0
#include "model/folder_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

namespace fs = std::filesystem;

std::string manifest_path(const std::string& folder) {
  return (fs::path(folder) / "manifest.json").string();
}

// 64-bit numbers go as text: JSON readers elsewhere hold numbers as double.
std::string checksum_text(const std::string& path) {
  return fmt::format("{:016x}", xxh3_file(path));
}

std::optional<std::string> entry_damage(const fs::path& folder, const std::string& name,
                                        const Json& entry) {
  const Json* bytes = entry.find("bytes");
  const Json* checksum = entry.find("xxh3");
  if (bytes == nullptr || bytes->if_int() == nullptr || checksum == nullptr ||
      checksum->if_string() == nullptr) {
    return fmt::format("manifest.json has no bytes and xxh3 of {}", name);
  }
  const fs::path relative(name);
  if (relative.is_absolute() ||
      std::find(relative.begin(), relative.end(), "..") != relative.end()) {
    return fmt::format("manifest.json lists {}, which is outside the folder", name);
  }
  const fs::path file = folder / relative;
  std::error_code failed;
  const auto size = fs::file_size(file, failed);
  if (failed) return fmt::format("{} is missing ({})", name, failed.message());
  if (size != static_cast<uint64_t>(*bytes->if_int())) {
    return fmt::format("{} has {} bytes, {} were saved", name, size, *bytes->if_int());
  }
  if (checksum_text(file.string()) != *checksum->if_string()) {
    return fmt::format("{} is damaged: its checksum is not the one that was saved", name);
  }
  return std::nullopt;
}

enum class Depth { whole_tree, direct_files };

std::optional<std::string> files_damage(const std::string& folder, const Json& files, Depth depth) {
  for (const Json::Member& m : *files.if_object()) {
    if (depth == Depth::direct_files && m.key.find('/') != std::string::npos) continue;
    if (auto reason = entry_damage(folder, m.key, m.value)) return reason;
  }
  return std::nullopt;
}

const Json* listed_files(const Json& manifest) {
  const Json* files = manifest.find("files");
  return files != nullptr && files->if_object() != nullptr ? files : nullptr;
}

}  // namespace

void write_manifest(const std::string& folder, int64_t step) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  Json files{Json::Object{}};
  for (const fs::path& path : paths) {
    files.add(path.lexically_relative(folder).generic_string(),
              Json{{"bytes", static_cast<int64_t>(fs::file_size(path))},
                   {"xxh3", checksum_text(path.string())}});
  }
  write_json_file(manifest_path(folder), Json{{"step", step}, {"files", files}});
}

std::optional<std::string> manifest_damage(const std::string& folder) {
  try {
    const Json manifest = read_json_file(manifest_path(folder));
    const Json* files = listed_files(manifest);
    if (files == nullptr) return "manifest.json lists no files";
    return files_damage(folder, *files, Depth::whole_tree);
  } catch (const Error& e) {
    return e.what();
  }
}

std::optional<int64_t> manifest_step(const std::string& folder) {
  try {
    const Json manifest = read_json_file(manifest_path(folder));
    const Json* step = manifest.find("step");
    if (step != nullptr && step->if_int() != nullptr) return *step->if_int();
  } catch (const Error&) {  // unreadable tells nothing either
  }
  return std::nullopt;
}

void check_model_files(const std::string& folder) {
  const std::string path = manifest_path(folder);
  std::error_code failed;
  if (!fs::exists(path, failed)) return;
  std::string reason;
  try {
    const Json manifest = read_json_file(path);
    const Json* files = listed_files(manifest);
    if (files == nullptr) return;
    if (const auto found = files_damage(folder, *files, Depth::direct_files)) {
      reason = folder + "/" + *found;
    }
  } catch (const Error& e) {
    reason = e.what();
  }
  if (reason.empty()) return;
  throw Error(
      Errc::invalid_argument, "model",
      fmt::format("{}; restore the file (for a run's model/, train --resume does), or, if the "
                  "change is meant, remove {}",
                  reason, path));
}

}  // namespace saturate::model
