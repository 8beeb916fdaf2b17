// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "observe/stacks/file_bytes.h"

namespace saturate::observe {

// Calls use(symbol, name) for each symbol that a 64-bit ELF file defines, in its dynamic and its full
// table. `head` and `sections` lie in `file`, e_shnum of them. Tables that reach beyond the file's
// end are left out.
template <class Use>
void for_each_symbol(const FileBytes& file, const Elf64_Ehdr& head, const Elf64_Shdr* sections,
                     const Use& use) {
  for (int s = 0; s < head.e_shnum; ++s) {
    const Elf64_Shdr& table = sections[s];
    if ((table.sh_type != SHT_DYNSYM && table.sh_type != SHT_SYMTAB) ||
        table.sh_link >= head.e_shnum)
      continue;
    const Elf64_Shdr& texts = sections[table.sh_link];
    const uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    const auto* symbols = file.at<Elf64_Sym>(table.sh_offset, count);
    const auto* text = file.at<char>(texts.sh_offset, texts.sh_size);
    if (symbols == nullptr || text == nullptr) continue;
    for (uint64_t i = 0; i < count; ++i) {
      if (symbols[i].st_shndx == SHN_UNDEF || symbols[i].st_name >= texts.sh_size) continue;
      const char* name = text + symbols[i].st_name;
      use(symbols[i], std::string_view(name, ::strnlen(name, texts.sh_size - symbols[i].st_name)));
    }
  }
}

}  // namespace saturate::observe
