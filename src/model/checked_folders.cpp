// SPDX-License-Identifier: Apache-2.0
#include "model/checked_folders.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

#include "base/cache_folder.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSettledAfter = 2'000'000'000;  // ns; FAT, the coarsest, writes down every 2 s

int64_t ns_of(const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

// Where it is kept, by the folder's own place, however it was named; "" for nowhere.
std::string place_of(const std::string& folder) {
  const std::string cache = user_cache_folder();
  std::error_code failed;
  const std::string path = fs::canonical(folder, failed).string();
  if (cache.empty() || failed) return "";
  const uint64_t hash = xxh3(std::as_bytes(std::span(path.data(), path.size())));
  return fmt::format("{}/checked/{:016x}", cache, hash);
}

}  // namespace

std::optional<std::string> state_of_files(const std::string& folder,
                                          const std::vector<std::string>& names) {
  timespec now{};
  if (::clock_gettime(CLOCK_REALTIME, &now) != 0) return std::nullopt;
  std::string state = "1\n";  // of this form
  for (const std::string& name : names) {
    struct stat s {};
    if (::stat((fs::path(folder) / name).c_str(), &s) != 0) return std::nullopt;
    const int64_t written = ns_of(s.st_mtim), changed = ns_of(s.st_ctim);
    if (std::max(written, changed) + kSettledAfter > ns_of(now)) return std::nullopt;
    state +=
        fmt::format("{} {} {} {} {} {}\n", s.st_dev, s.st_ino, s.st_size, written, changed, name);
  }
  return state;
}

bool was_found_whole(const std::string& folder, const std::string& state) {
  const std::string path = place_of(folder);
  if (path.empty()) return false;
  std::ifstream in(path, std::ios::binary);
  const std::string kept{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return in && kept == state;
}

void remember_whole(const std::string& folder, const std::string& state) noexcept {
  try {
    const std::string path = place_of(folder);
    if (path.empty()) return;
    fs::create_directories(fs::path(path).parent_path());
    // Another process may do the same: each puts a whole file in its place.
    const std::string mine = fmt::format("{}.{}", path, ::getpid());
    std::ofstream out(mine, std::ios::binary);
    out << state;
    out.close();
    std::error_code failed;
    if (out) fs::rename(mine, path, failed);
    if (!out || failed) fs::remove(mine, failed);
  } catch (const std::exception&) {  // then it is read again
  }
}

}  // namespace saturate::model
