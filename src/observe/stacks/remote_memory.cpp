// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/remote_memory.h"

#include <elf.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <unordered_set>

#include "observe/stacks/elf_symbols.h"
#include "observe/stacks/file_bytes.h"

namespace saturate::observe {

bool RemoteMemory::read(uint64_t at, void* to, size_t bytes) const {
  const iovec local{to, bytes};
  const iovec remote{reinterpret_cast<void*>(at), bytes};
  const ssize_t got = ::process_vm_readv(pid_, &local, 1, &remote, 1, 0);
  if (got < 0) error_ = errno;
  return got == static_cast<ssize_t>(bytes);
}

size_t RemoteMemory::read_parts(std::span<const uint64_t> from, size_t bytes, char* to) const {
  const size_t count = std::min(from.size(), kMostParts);
  if (count == 0) return 0;
  const iovec local{to, count * bytes};
  std::array<iovec, kMostParts> remote;
  for (size_t i = 0; i < count; ++i) remote[i] = {reinterpret_cast<void*>(from[i]), bytes};
  const ssize_t got = ::process_vm_readv(pid_, &local, 1, remote.data(), count, 0);
  if (got < 0) error_ = errno;
  return got <= 0 ? 0 : static_cast<size_t>(got) / bytes;
}

std::vector<MappedFile> mapped_files(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/maps");
  std::vector<MappedFile> found;
  std::unordered_set<std::string> seen;
  for (std::string line; std::getline(file, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos) continue;
    std::string name = line.substr(path);
    if (!seen.insert(name).second) continue;
    found.push_back({std::strtoull(line.c_str(), nullptr, 16), std::move(name)});
  }
  return found;
}

std::map<std::string, uint64_t> find_symbols(const std::string& path, uint64_t start,
                                             std::span<const std::string_view> names) {
  std::map<std::string, uint64_t> found;
  const FileBytes file(path);
  const auto* head = file.at<Elf64_Ehdr>(0);
  if (head == nullptr || std::memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 ||
      head->e_ident[EI_CLASS] != ELFCLASS64)
    return found;
  const auto* segments = file.at<Elf64_Phdr>(head->e_phoff, head->e_phnum);
  const auto* sections = file.at<Elf64_Shdr>(head->e_shoff, head->e_shnum);
  if (segments == nullptr || sections == nullptr) return found;
  uint64_t lowest = UINT64_MAX;
  for (int i = 0; i < head->e_phnum; ++i) {
    if (segments[i].p_type == PT_LOAD)
      lowest = std::min<uint64_t>(lowest, segments[i].p_vaddr & ~uint64_t{4095});
  }
  if (lowest == UINT64_MAX) return found;
  const uint64_t bias = head->e_type == ET_EXEC ? 0 : start - lowest;
  for_each_symbol(file, *head, sections, [&](const Elf64_Sym& symbol, std::string_view name) {
    if (std::find(names.begin(), names.end(), name) != names.end())
      found.emplace(name, bias + symbol.st_value);
  });
  return found;
}

}  // namespace saturate::observe
