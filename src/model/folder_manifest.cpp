// SPDX-License-Identifier: Apache-2.0
#include "model/folder_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/checked_folders.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

namespace fs = std::filesystem;

std::string manifest_path(const std::string& folder) {
  return (fs::path(folder) / "manifest.json").string();
}

// 64-bit numbers go as text: JSON readers elsewhere hold numbers as double.
std::string text_of(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

uint64_t pieces_of(uint64_t bytes) {
  return std::max<uint64_t>(1, (bytes + kHashBytes - 1) / kHashBytes);
}

// One piece of a file. Errors: io.
uint64_t hash_of_piece(const std::string& path, uint64_t piece, std::vector<char>& block) {
  std::ifstream in(path, std::ios::binary);
  block.resize(kHashBytes);
  in.seekg(static_cast<std::streamoff>(piece * kHashBytes));
  in.read(block.data(), static_cast<std::streamsize>(kHashBytes));
  if (in.bad() || (in.fail() && !in.eof()))
    throw Error(Errc::io, "checksum", fmt::format("{}: {}", path, std::strerror(errno)));
  return xxh3(std::as_bytes(std::span(block.data(), static_cast<size_t>(in.gcount()))));
}

// Deals pieces out in turn.
class Turns {
 public:
  explicit Turns(Share share) : share_(share) {}
  bool mine() { return next_++ % share_.ranks == share_.rank; }

 private:
  Share share_;
  int64_t next_ = 0;
};

std::optional<std::string> entry_damage(const fs::path& folder, const std::string& name,
                                        const Json& entry, Turns& turns) {
  const Json* bytes = entry.find("bytes");
  const Json* checksum = entry.find("xxh3");
  const Json::Array* list = checksum == nullptr ? nullptr : checksum->if_array();
  if (bytes == nullptr || bytes->if_int() == nullptr || checksum == nullptr ||
      (checksum->if_string() == nullptr && list == nullptr)) {
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
  const std::string damaged =
      fmt::format("{} is damaged: its checksum is not the one that was saved", name);
  if (list == nullptr) {  // of the whole file, which earlier versions wrote of any size
    if (!turns.mine() || text_of(xxh3_file(file.string())) == *checksum->if_string())
      return std::nullopt;
    return damaged;
  }
  if (list->size() != pieces_of(size))
    return fmt::format("manifest.json has too few xxh3 of {}", name);
  std::vector<char> block;
  for (size_t i = 0; i < list->size(); ++i) {
    if (!turns.mine()) continue;
    const std::string* saved = (*list)[i].if_string();
    if (saved == nullptr || text_of(hash_of_piece(file.string(), i, block)) != *saved)
      return damaged;
  }
  return std::nullopt;
}

enum class Depth { whole_tree, direct_files };

std::optional<std::string> files_damage(const std::string& folder, const Json& files, Depth depth,
                                        Share share) {
  Turns turns(share);
  for (const Json::Member& m : *files.if_object()) {
    if (depth == Depth::direct_files && m.key.find('/') != std::string::npos) continue;
    if (auto reason = entry_damage(folder, m.key, m.value, turns)) return reason;
  }
  return std::nullopt;
}

// Below this many bytes a folder is read as quickly as its state is kept.
constexpr int64_t kWorthKeeping = int64_t{kHashBytes};

// The files that a model's folder is checked by; none where they are few bytes.
std::vector<std::string> names_worth_keeping(const Json& files) {
  std::vector<std::string> names{"manifest.json"};
  int64_t all = 0;
  for (const Json::Member& m : *files.if_object()) {
    if (m.key.find('/') != std::string::npos) continue;
    names.push_back(m.key);
    const int64_t* bytes = m.value["bytes"].if_int();
    if (bytes != nullptr && *bytes > 0) all += std::min(*bytes, kWorthKeeping);
  }
  if (all < kWorthKeeping) names.clear();
  return names;
}

const Json* listed_files(const Json& manifest) {
  const Json* files = manifest.find("files");
  return files != nullptr && files->if_object() != nullptr ? files : nullptr;
}

}  // namespace

std::vector<ListedFile> files_to_list(const std::string& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<ListedFile> files;
  for (const fs::path& path : paths)
    files.push_back({path.lexically_relative(folder).generic_string(), fs::file_size(path)});
  return files;
}

std::vector<uint64_t> hashes_of(const std::string& folder, const std::vector<ListedFile>& files,
                                Share share) {
  std::vector<uint64_t> hashes;
  std::vector<char> block;
  Turns turns(share);
  for (const ListedFile& file : files) {
    for (uint64_t i = 0; i < pieces_of(file.bytes); ++i)
      hashes.push_back(
          turns.mine() ? hash_of_piece((fs::path(folder) / file.name).string(), i, block) : 0);
  }
  return hashes;
}

void write_manifest(const std::string& folder, int64_t step, const std::vector<ListedFile>& files,
                    const std::vector<uint64_t>& hashes) {
  Json list{Json::Object{}};
  auto next = hashes.begin();
  for (const ListedFile& file : files) {
    Json::Array of_pieces;
    for (uint64_t i = 0; i < pieces_of(file.bytes); ++i) of_pieces.emplace_back(text_of(*next++));
    Json checksum = of_pieces.size() == 1 ? of_pieces[0] : Json(of_pieces);
    list.add(file.name, Json{{"bytes", static_cast<int64_t>(file.bytes)}, {"xxh3", checksum}});
  }
  write_json_file(manifest_path(folder), Json{{"step", step}, {"files", list}});
}

void write_manifest(const std::string& folder, int64_t step) {
  const std::vector<ListedFile> files = files_to_list(folder);
  write_manifest(folder, step, files, hashes_of(folder, files, {}));
}

std::optional<std::string> manifest_damage(const std::string& folder, Share share) {
  try {
    const Json manifest = read_json_file(manifest_path(folder));
    const Json* files = listed_files(manifest);
    if (files == nullptr) return "manifest.json lists no files";
    return files_damage(folder, *files, Depth::whole_tree, share);
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
    const std::vector<std::string> names = names_worth_keeping(*files);
    std::optional<std::string> state;  // before they are read
    if (!names.empty()) state = state_of_files(folder, names);
    if (state && was_found_whole(folder, *state)) return;
    if (const auto found = files_damage(folder, *files, Depth::direct_files, {})) {
      reason = folder + "/" + *found;
    } else if (state && state_of_files(folder, names) == state) {
      remember_whole(folder, *state);
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
