// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/native_code.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <future>
#include <utility>

namespace saturate::observe {
namespace {

constexpr int64_t kReadEveryNs = 1'000'000'000;
constexpr size_t kMostKnown = 100'000;  // addresses: the map is then made anew
constexpr const char* kNoFile = "[code made while running]";

// Null while it is read.
const FunctionTable* functions_of(pid_t pid, const std::string& path) {
  static std::map<std::string, std::shared_future<FunctionTable>> tables;
  std::shared_future<FunctionTable>& table = tables[path];
  if (!table.valid()) {
    // Through the process: it may have a root of its own.
    table = std::async(std::launch::async, [path, file = "/proc/" + std::to_string(pid) + "/root" +
                                                         path] {
              setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);  // the program goes first
              FunctionTable found(file);
              return found.empty() ? FunctionTable(path) : found;  // the process has ended
            }).share();
  }
  const bool ready = table.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return ready ? &table.get() : nullptr;
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

const NativeCode::Place* NativeCode::at(uint64_t address, int64_t now_ns) {
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
  if (const auto known = known_.find(address); known != known_.end()) return &known->second;
  Place place;
  place.file = range == ranges_.end() ? kNoFile : range->second.path;
  if (range != ranges_.end() && place.file[0] == '/') {
    const FunctionTable* functions = functions_of(pid_, place.file);
    if (functions == nullptr) return nullptr;
    place.function = functions->at(address - range->first + range->second.offset);
  }
  if (place.function.empty()) place.function = "(no symbol)";
  return &known_.emplace(address, std::move(place)).first->second;
}

}  // namespace saturate::observe
