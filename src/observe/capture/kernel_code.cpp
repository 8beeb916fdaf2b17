// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/kernel_code.h"

#include <elf.h>

#include <cctype>
#include <cstdint>
#include <cstring>
#include <optional>

namespace saturate::observe::cupti {
namespace {

constexpr uint16_t kMachine = 190;  // EM_CUDA
constexpr uint32_t kVolta = 70;
constexpr size_t kInstruction = 16;  // bytes
constexpr std::string_view kText = ".text.";

// Of untrusted bytes: a copy of what lies at `at`, or nothing.
template <class T>
std::optional<T> read(std::string_view file, uint64_t at) {
  if (at > file.size() || file.size() - at < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

std::string_view part(std::string_view file, uint64_t at, uint64_t bytes) {
  return at > file.size() || file.size() - at < bytes ? std::string_view{} : file.substr(at, bytes);
}

// Since CUDA 13 (version 8 of the file's layout) the second byte of the flags, before it the first.
uint32_t architecture(const Elf64_Ehdr& head) {
  constexpr unsigned char kSecondByte = 8;
  return head.e_ident[EI_ABIVERSION] >= kSecondByte ? head.e_flags >> 8 & 0xff
                                                    : head.e_flags & 0xff;
}

bool computes_double(std::string_view code) {
  int64_t doubles = 0, others = 0;
  for (size_t at = 0; at + kInstruction <= code.size(); at += kInstruction) {
    uint16_t word;
    std::memcpy(&word, code.data() + at, sizeof word);
    switch (word & 0x1ff) {
      case 0x028:  // DMUL
      case 0x029:  // DADD
      case 0x02b:  // DFMA
      case 0x03f:  // DMMA
        ++doubles;
        break;
      case 0x020:  // FMUL
      case 0x021:  // FADD
      case 0x023:  // FFMA
      case 0x030:  // HADD2
      case 0x031:  // HFMA2
      case 0x032:  // HMUL2
      case 0x03c:  // HMMA
        ++others;
        break;
      default:
        break;
    }
  }
  return doubles > others;
}

}  // namespace

bool names_narrow_type(std::string_view name) {
  std::string kernel(name.substr(0, 512));
  for (char& c : kernel) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view type : {"float", "half", "f32", "f16", "fp32", "fp16"}) {
    for (size_t at = kernel.find(type); at != std::string::npos; at = kernel.find(type, at + 1))
      if (kernel.compare(at, 7, "float64") != 0) return true;
  }
  return false;
}

void KernelCode::add(const void* cubin, size_t bytes) {
  const std::string_view file(static_cast<const char*>(cubin), cubin == nullptr ? 0 : bytes);
  const auto head = read<Elf64_Ehdr>(file, 0);
  if (!head || std::memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 ||
      head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_machine != kMachine ||
      architecture(*head) < kVolta)
    return;
  const auto section = [&](uint64_t i) {
    return read<Elf64_Shdr>(file, head->e_shoff + i * sizeof(Elf64_Shdr));
  };
  const auto names = section(head->e_shstrndx);
  if (!names) return;
  const std::string_view texts = part(file, names->sh_offset, names->sh_size);
  for (uint64_t i = 0; i < head->e_shnum; ++i) {
    const auto s = section(i);
    if (!s || s->sh_type != SHT_PROGBITS || s->sh_name >= texts.size()) continue;
    const std::string_view name =
        texts.substr(s->sh_name, texts.find('\0', s->sh_name) - s->sh_name);
    if (!name.starts_with(kText)) continue;
    const bool doubles = computes_double(part(file, s->sh_offset, s->sh_size));
    const std::string kernel(name.substr(kText.size()));
    const std::lock_guard lock(mutex_);
    doubles ? static_cast<void>(float64_.insert(kernel))
            : static_cast<void>(float64_.erase(kernel));
  }
}

bool KernelCode::computes_in_float64(const std::string& mangled) const {
  const std::lock_guard lock(mutex_);
  return float64_.contains(mangled);
}

}  // namespace saturate::observe::cupti
