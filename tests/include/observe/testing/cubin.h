// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace saturate::observe::testing {

// A kernel of a module: its mangled name, and the low twelve bits of its instructions, as nvdisasm
// shows them last in each: 0x22b of DFMA, 0x223 of FFMA.
struct CodeOf {
  std::string kernel;
  std::vector<uint16_t> instructions;
};

// A module (cubin) as the CUDA driver holds one, with what a reader of its code needs: the names of
// its sections and the code of each kernel. `layout`: 8 since CUDA 13, 7 before.
inline std::string cubin_of(const std::vector<CodeOf>& kernels, uint32_t architecture = 90,
                            unsigned char layout = 8) {
  std::string names(1, '\0'), code;
  std::vector<Elf64_Shdr> sections(1);
  const auto add = [&](const std::string& name, uint64_t at, uint64_t bytes, uint32_t type) {
    Elf64_Shdr s{};
    s.sh_name = static_cast<uint32_t>(names.size());
    s.sh_type = type;
    s.sh_offset = at;
    s.sh_size = bytes;
    names += name + '\0';
    sections.push_back(s);
  };
  for (const CodeOf& k : kernels) {
    const size_t from = code.size();
    for (const uint16_t low : k.instructions) {
      uint64_t words[2] = {0x0000'0000'ff00'7000 | low, 0x000f'e200'0000'0000};
      code.append(reinterpret_cast<const char*>(words), sizeof words);
    }
    add(".text." + k.kernel, sizeof(Elf64_Ehdr) + from, code.size() - from, SHT_PROGBITS);
  }
  add(".nv.info", sizeof(Elf64_Ehdr), 0, 0x7000'0000);
  add(".shstrtab", 0, 0, SHT_STRTAB);
  sections.back().sh_offset = sizeof(Elf64_Ehdr) + code.size();
  sections.back().sh_size = names.size();
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_ident[EI_ABIVERSION] = layout;
  head.e_machine = 190;
  head.e_flags = layout >= 8 ? 0x0600'0004 | architecture << 8 : 0x0050'0500 | architecture;
  head.e_shoff = sizeof head + code.size() + names.size();
  head.e_shnum = static_cast<Elf64_Half>(sections.size());
  head.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
  std::string file(reinterpret_cast<const char*>(&head), sizeof head);
  file += code + names;
  file.append(reinterpret_cast<const char*>(sections.data()), sections.size() * sizeof(Elf64_Shdr));
  return file;
}

}  // namespace saturate::observe::testing
