// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/native_code.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <utility>

namespace saturate::observe {
namespace {

constexpr int64_t kReadEveryNs = 1'000'000'000;
constexpr size_t kMostKnown = 100'000;  // addresses: the map is then made anew
constexpr const char* kNoFile = "[code made while running]";

const FunctionTable& functions_of(pid_t pid, const std::string& path) {
  static std::map<std::string, std::unique_ptr<FunctionTable>> tables;
  std::unique_ptr<FunctionTable>& table = tables[path];
  // Through the process: it may have a root of its own.
  if (table == nullptr)
    table = std::make_unique<FunctionTable>("/proc/" + std::to_string(pid) + "/root" + path);
  return *table;
}

}  // namespace

void NativeCode::read_maps() {
  ranges_.clear();
  known_.clear();
  std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t start = 0, end = 0, offset = 0;
    char rights[5] = {};
    int path = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*s %*s %n", &start,
                    &end, rights, &offset, &path) != 4 ||
        rights[2] != 'x')
      continue;
    std::string name = path > 0 ? line.substr(static_cast<size_t>(path)) : "";
    if (name.empty() || (name[0] != '/' && name != "[vdso]")) name = kNoFile;
    ranges_.emplace(start, Range{end, offset, std::move(name)});
  }
}

const NativeCode::Place& NativeCode::at(uint64_t address, int64_t now_ns) {
  const auto range_of = [&] {
    auto range = ranges_.upper_bound(address);
    if (range == ranges_.begin() || address >= (--range)->second.end) return ranges_.end();
    return range;
  };
  if (known_.size() > kMostKnown) known_.clear();
  auto range = range_of();
  if (range == ranges_.end() && now_ns - read_ns_ >= kReadEveryNs) {
    read_ns_ = now_ns;
    read_maps();
    range = range_of();
  }
  const auto [at, fresh] = known_.try_emplace(address);
  if (!fresh) return at->second;
  Place& place = at->second;
  place.file = range == ranges_.end() ? kNoFile : range->second.path;
  if (range != ranges_.end() && place.file[0] == '/')
    place.function =
        functions_of(pid_, place.file).at(address - range->first + range->second.offset);
  if (place.function.empty()) place.function = "(no symbol)";
  return place;
}

}  // namespace saturate::observe
