// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "model/json_file.h"
#include "model/safetensors.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;
using model::Json;

// 64-bit numbers go as text: JSON readers elsewhere hold numbers as double.
std::string checksum_text(const std::string& path) {
  return fmt::format("{:016x}", model::xxh3_file(path));
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

}  // namespace

void write_manifest(const std::string& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  Json files{Json::Object{}};
  for (const fs::path& path : paths) {
    files.add(path.lexically_relative(folder).generic_string(),
              Json::object({{"bytes", static_cast<int64_t>(fs::file_size(path))},
                            {"xxh3", checksum_text(path.string())}}));
  }
  model::write_json_file((fs::path(folder) / "manifest.json").string(),
                         Json::object({{"files", files}}));
}

std::optional<std::string> manifest_damage(const std::string& folder) {
  try {
    const Json manifest = model::read_json_file((fs::path(folder) / "manifest.json").string());
    const Json* files = manifest.find("files");
    if (files == nullptr || files->if_object() == nullptr) return "manifest.json lists no files";
    for (const Json::Member& m : *files->if_object()) {
      if (auto reason = entry_damage(folder, m.key, m.value)) return reason;
    }
  } catch (const Error& e) {
    return e.what();
  }
  return std::nullopt;
}

}  // namespace saturate::train
