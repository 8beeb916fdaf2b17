// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/function_table.h"

#include <cxxabi.h>
#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "observe/stacks/elf_symbols.h"
#include "observe/stacks/file_bytes.h"

namespace saturate::observe {

std::string function_words(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  if (plain == nullptr) return symbol.substr(0, symbol.find('@'));  // its version
  const std::string text = plain.get();
  std::string words;
  int inside = 0;  // of how many <>
  for (size_t i = 0; i < text.size(); ++i) {
    // "operator()" and "(anonymous namespace)" are no parameters, and "operator<" opens nothing.
    if (text.compare(i, 8, "operator") == 0 && inside == 0) {
      const size_t end = text.find('(', i + (text.compare(i + 8, 2, "()") == 0 ? 10 : 8));
      return words + text.substr(i, end == std::string::npos ? end : end - i);
    }
    constexpr const char kAnonymous[] = "(anonymous namespace)";
    if (text.compare(i, sizeof kAnonymous - 1, kAnonymous) == 0) {
      if (inside == 0) words += kAnonymous;
      i += sizeof kAnonymous - 2;
      continue;
    }
    const char c = text[i];
    if (c == '<' && inside++ == 0) words += "<...>";
    if (c == '>') --inside;
    if (inside > 0 || c == '>') continue;
    if (c == '(') break;
    words += c;
  }
  // A template's result stands before it.
  const size_t blank = words.rfind(' ');
  const size_t room = words.rfind("(anonymous namespace)");
  if (blank != std::string::npos && (room == std::string::npos || blank < room))
    words.erase(0, blank + 1);
  return words;
}

FunctionTable::FunctionTable(const std::string& path) {
  const FileBytes file(path);
  const auto* head = file.at<Elf64_Ehdr>(0);
  if (head == nullptr || std::memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 ||
      head->e_ident[EI_CLASS] != ELFCLASS64)
    return;
  const auto* segments = file.at<Elf64_Phdr>(head->e_phoff, head->e_phnum);
  const auto* sections = file.at<Elf64_Shdr>(head->e_shoff, head->e_shnum);
  if (segments == nullptr || sections == nullptr) return;
  // The part of the file that is mapped to run, most often one.
  const auto offset_of = [&](uint64_t address) {
    for (int i = 0; i < head->e_phnum; ++i) {
      const Elf64_Phdr& p = segments[i];
      if (p.p_type == PT_LOAD && (p.p_flags & PF_X) != 0 && address >= p.p_vaddr &&
          address - p.p_vaddr < p.p_filesz)
        return address - p.p_vaddr + p.p_offset;
    }
    return UINT64_MAX;
  };
  for_each_symbol(file, *head, sections, [&](const Elf64_Sym& symbol, std::string_view name) {
    const unsigned kind = ELF64_ST_TYPE(symbol.st_info);
    if (kind != STT_FUNC && kind != STT_GNU_IFUNC) return;
    const uint64_t start = offset_of(symbol.st_value);
    if (start == UINT64_MAX) return;
    functions_.push_back({start, start + symbol.st_size, std::string(name)});
  });
  std::sort(functions_.begin(), functions_.end(),
            [](const Function& a, const Function& b) { return a.start < b.start; });
  // Functions of assembler have no size: they end where the next begins.
  for (size_t i = 0; i + 1 < functions_.size(); ++i)
    if (functions_[i].end == functions_[i].start) functions_[i].end = functions_[i + 1].start;
}

std::string FunctionTable::at(uint64_t offset) const {
  auto after = std::upper_bound(functions_.begin(), functions_.end(), offset,
                                [](uint64_t o, const Function& f) { return o < f.start; });
  // Several names may begin at one place, some of them empty.
  for (int tries = 0; after != functions_.begin() && tries < 4; ++tries) {
    --after;
    if (offset < after->end && !after->name.empty()) return function_words(after->name);
  }
  return "";
}

}  // namespace saturate::observe
