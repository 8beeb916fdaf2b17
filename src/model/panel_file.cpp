// SPDX-License-Identifier: Apache-2.0
#include "model/panel_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/cache_folder.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/features.h"
#include "base/json.h"
#include "base/timed_part.h"
#include "model/checked_folders.h"
#include "model/hf_weights.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

namespace fs = std::filesystem;
using kernels::PackedType;
using kernels::PackedWeights;

// The file begins with this line, the bytes of a JSON object as eight digits, the object's checksum as sixteen, and the
// object; behind it, from the next page on, lie the panels.
constexpr std::string_view kMagic = "saturate panels\n";
constexpr size_t kDigits = 8, kSum = 16, kHeadAt = kMagic.size() + kDigits + kSum, kPage = 4096;
constexpr size_t kAlign = 64;
constexpr const char* kDamagedHead = "its head is damaged";

constexpr PackedType kTypes[] = {PackedType::f32, PackedType::s8, PackedType::bf16};

const char* name_of(PackedType type) {
  switch (type) {
    case PackedType::f32:
      return "fp32";
    case PackedType::s8:
      return "int8";
    case PackedType::bf16:
      return "bf16";
  }
  return "";
}

std::string layout_of(PackedType type) {
  return fmt::format("{} {}, saturate {}", name_of(type), PackedWeights::kLayout, SATURATE_VERSION);
}

std::string checksum(std::string_view bytes) {
  return fmt::format("{:016x}", xxh3(std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

// By the folder's own place, however it was named; "" for nowhere.
std::string path_of(const std::string& folder, PackedType type) {
  const std::string cache = user_cache_folder();
  std::error_code failed;
  const std::string place = fs::canonical(folder, failed).string();
  if (cache.empty() || failed) return "";
  return fmt::format("{}/panels/{}-{}", cache, checksum(place), name_of(type));
}

// The state of all files that lie directly in a folder, since a shard may have any name; nothing where one may change
// unseen.
std::optional<std::string> state_of_weights(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code gone;
    if (!at->is_directory(gone)) names.push_back(at->path().filename().string());
  }
  if (failed) return std::nullopt;
  std::ranges::sort(names);
  return state_of_files(folder, names);
}

std::string mapping_of(const std::string& folder, const ModelConfig& config) {
  std::string all;
  for (const TensorMapping& m : tensor_mapping_of(folder, config)) {
    all += fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}\n", m.hf_name, m.parameter, m.first_row,
                       m.rows, m.cols, m.transposed, m.sinusoids, m.scale, m.shift, m.skipped_rows,
                       m.missing_rows, m.missing_value);
    for (const std::string& alias : m.aliases) all += alias + "\n";
  }
  return checksum(all);
}

size_t up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

PanelSource settled_source(const std::string& folder, const ModelConfig& config) {
  std::optional<std::string> files = state_of_weights(folder);
  for (int tenths = 0; !files && tenths < 30; ++tenths) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    files = state_of_weights(folder);
  }
  if (!files) {
    throw Error(Errc::io, "panels",
                folder +
                    " is being written, or its files are of the future; try again when it is "
                    "whole");
  }
  return {*std::move(files), mapping_of(folder, config)};
}

std::shared_ptr<const PanelFile> PanelFile::open(const std::string& folder,
                                                 const ModelConfig& config, PackedType type) {
  const std::string path = path_of(folder, type);
  if (path.empty()) return nullptr;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  const std::shared_ptr<PanelFile> file(new PanelFile());
  file->folder_ = folder;
  std::string why;
  try {
    why = file->why_not(fd, path, type, config);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  note_of_start(why.empty() ? fmt::format("{} lies in {}", folder, path)
                            : fmt::format("{} is passed over: {}", path, why));
  return why.empty() ? file : nullptr;
}

// Empty: it is taken.
std::string PanelFile::why_not(int fd, const std::string& path, PackedType type,
                               const ModelConfig& config) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0)
    return "it is no file with bytes";
  if (info.st_uid != ::geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return "it is another user's, or others may write to it";
  const auto size = static_cast<size_t>(info.st_size);
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) return fmt::format("it cannot be mapped: {}", std::strerror(errno));
  data_ = mapped, bytes_ = size;
  const std::string_view all(static_cast<const char*>(data_), bytes_);
  size_t head_bytes = 0;
  if (all.size() < kHeadAt || !all.starts_with(kMagic)) return kDamagedHead;
  const char* const digits = all.data() + kMagic.size();
  const auto [end, bad] = std::from_chars(digits, digits + kDigits, head_bytes);
  if (bad != std::errc{} || end != digits + kDigits || head_bytes > all.size() - kHeadAt ||
      up(kHeadAt + head_bytes, kPage) > all.size())
    return kDamagedHead;
  const std::string_view head = all.substr(kHeadAt, head_bytes);
  if (checksum(head) != all.substr(kMagic.size() + kDigits, kSum)) return kDamagedHead;

  const std::optional<std::string> now = state_of_weights(folder_);
  if (!now) return folder_ + " has just been written";
  // Of the file that is mapped, not of one that has taken its place.
  const fs::path at(path);
  std::optional<std::string> own = state_of_files(at.parent_path().string(), {at.filename()});
  if (!is_open_at(fd, path)) own.reset();
  const bool known_whole = own && was_found_whole(path, *own);
  std::string why = take_panels(head, type, {*now, mapping_of(folder_, config)},
                                up(kHeadAt + head_bytes, kPage), known_whole);
  if (why.empty() && own && !known_whole) remember_whole(path, *own);
  return why;
}

std::string PanelFile::take_panels(std::string_view text, PackedType type, const PanelSource& now,
                                   size_t data_at, bool known_whole) {
  const std::optional<Json> head = try_parse_json(text);
  const Json::Array* const list = head ? (*head)["panels"].if_array() : nullptr;
  if (list == nullptr) return kDamagedHead;
  const auto is = [&](const char* key, const std::string& value) {
    const std::string* const there = (*head)[key].if_string();
    return there != nullptr && *there == value;
  };
  if (!is("layout", layout_of(type)) || !is("mapping", now.mapping))
    return "it was written by another version of this program; saturate panels writes it anew";
  if (!is("files", now.files))
    return folder_ + " has changed since; saturate panels writes it anew";
  files_ = now.files;
  const size_t rest = bytes_ - data_at;
  for (const Json& p : *list) {
    const std::string *const name = p["name"].if_string(), *const sum = p["xxh3"].if_string();
    const int64_t *const n = p["n"].if_int(), *const k = p["k"].if_int();
    const int64_t* const at = p["at"].if_int();
    constexpr int64_t kMost = int64_t{1} << 28;  // so that bytes_of() has room
    if (name == nullptr || sum == nullptr || n == nullptr || k == nullptr || at == nullptr ||
        *n < 1 || *k < 1 || *n > kMost || *k > kMost || *at < 0)
      return kDamagedHead;
    const auto begin = static_cast<size_t>(*at);
    const size_t bytes = PackedWeights::bytes_of(type, *n, *k);
    if (begin % kAlign != 0) return kDamagedHead;
    if (begin > rest || bytes > rest - begin) return "it ends too soon";
    const char* const data = static_cast<const char*>(data_) + data_at + begin;
    if (!known_whole && checksum({data, bytes}) != *sum)
      return "the checksum of " + *name + " is not the one that was written";
    panels_[*name] = {*n, *k, data};
  }
  return "";
}

PanelFile::~PanelFile() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

bool PanelFile::is_current() const { return state_of_weights(folder_) == files_; }

const char* PanelFile::find(const std::string& name, int64_t n, int64_t k) const noexcept {
  const auto found = panels_.find(name);
  const bool is = found != panels_.end() && found->second.n == n && found->second.k == k;
  return is ? found->second.data : nullptr;
}

KeptPanels keep_panels(const std::string& folder, const ModelConfig& config, PackedType type,
                       const ParameterStore& store, const PanelSource& source) {
  const std::string path = path_of(folder, type);
  if (path.empty()) {
    throw Error(Errc::io, "panels",
                "there is no folder to keep them in: neither SATURATE_CACHE nor XDG_CACHE_HOME nor "
                "HOME is set; set SATURATE_CACHE to one");
  }
  Json::Array list;
  std::vector<std::string_view> parts;
  size_t at = 0;
  const auto& specs = store.specs();
  for (size_t i = 0; i < specs.size(); ++i) {
    const ParameterId id{static_cast<int32_t>(i)};
    if (!store.is_packed(id)) continue;
    const PackedWeights& w = *store.packed(id);
    SAT_ASSERT(w.view().type == type);
    parts.emplace_back(w.view().panels, w.bytes());
    list.push_back({{"name", specs[i].name},
                    {"n", w.view().n},
                    {"k", w.view().k},
                    {"at", static_cast<int64_t>(at)},
                    {"xxh3", checksum(parts.back())}});
    at = up(at + w.bytes(), kAlign);
  }
  if (parts.empty())
    throw Error(Errc::invalid_argument, "panels", folder + " has no matrix that is packed");
  const std::string json = Json{
      {"layout", layout_of(type)},
      {"folder", folder},
      {"mapping", source.mapping},
      {"files", source.files},
      {"panels",
       Json(std::move(list))}}.dump();
  const std::string head = fmt::format("{}{:08}{}{}", kMagic, json.size(), checksum(json), json);
  const size_t bytes = up(head.size(), kPage) + at;
  const fs::path place = fs::path(path).parent_path();
  std::error_code failed;
  fs::create_directories(place.parent_path(), failed);
  if (!failed && ::mkdir(place.c_str(), 0700) != 0 && errno != EEXIST)
    failed = {errno, std::generic_category()};
  if (failed) {
    throw Error(Errc::io, "panels",
                fmt::format("cannot make {}: {}; set SATURATE_CACHE to a folder where this user "
                            "may write",
                            place.string(), failed.message()));
  }
  // Another process may do the same: each writes a file of its own and puts it in its place whole.
  const std::string mine = fmt::format("{}.{}", path, ::getpid());
  try {
    DurableFile out(mine, bytes);
    fs::permissions(mine + ".tmp", fs::perms::owner_read | fs::perms::owner_write);
    const std::vector<char> zeros(kPage, '\0');
    const auto write = [&](std::string_view part, size_t multiple) {
      out.write(part.data(), part.size());
      out.write(zeros.data(), up(part.size(), multiple) - part.size());
    };
    write(head, kPage);
    for (const std::string_view part : parts) write(part, kAlign);
    out.commit();
    if (state_of_weights(folder) != source.files || mapping_of(folder, config) != source.mapping) {
      throw Error(Errc::io, "panels",
                  folder + " has changed while it was read; try again when it is left alone");
    }
    fs::rename(mine, path);
    sync_folder(place.string());
  } catch (const fs::filesystem_error& e) {
    fs::remove(mine, failed);
    throw Error(Errc::io, "panels", e.what());
  } catch (...) {
    fs::remove(mine, failed);
    throw;
  }
  return {path, bytes};
}

size_t forget_panels(const std::string& folder) {
  size_t bytes = 0;
  for (const PackedType type : kTypes) {
    const fs::path path = path_of(folder, type);
    if (path.empty()) continue;
    std::vector<fs::path> found;
    std::error_code failed;
    for (fs::directory_iterator at(path.parent_path(), failed), end; !failed && at != end;
         at.increment(failed)) {
      const std::string name = at->path().filename().string(), own = path.filename().string();
      if (name == own || name.starts_with(own + ".")) found.push_back(at->path());
    }
    for (const fs::path& p : found) {
      const uintmax_t size = fs::file_size(p, failed);
      if (failed) continue;  // another process was first
      if (!fs::remove(p, failed) || failed) {
        throw Error(Errc::io, "panels",
                    fmt::format("cannot remove {}: {}", p.string(), failed.message()));
      }
      bytes += size;
    }
  }
  return bytes;
}

}  // namespace saturate::model
