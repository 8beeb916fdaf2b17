// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/import_table.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace saturate::observe::cupti {
namespace {

#if defined(__x86_64__)
constexpr bool kKnown = true;
bool binds(uint64_t info) {
  return ELF64_R_TYPE(info) == R_X86_64_JUMP_SLOT || ELF64_R_TYPE(info) == R_X86_64_GLOB_DAT;
}
#elif defined(__aarch64__)
constexpr bool kKnown = true;
bool binds(uint64_t info) {
  return ELF64_R_TYPE(info) == R_AARCH64_JUMP_SLOT || ELF64_R_TYPE(info) == R_AARCH64_GLOB_DAT;
}
#else
constexpr bool kKnown = false;
bool binds(uint64_t) { return false; }
#endif

bool protect(void* at, size_t bytes, int protection) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = reinterpret_cast<uintptr_t>(at) & ~(page - 1);
  const uintptr_t to = reinterpret_cast<uintptr_t>(at) + bytes;
  return mprotect(reinterpret_cast<void*>(from), to - from, protection) == 0;
}

struct Module {
  ElfW(Addr) base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* texts = nullptr;
  const ElfW(Rela) * tables[2] = {};
  size_t counts[2] = {},
         relative = 0;  // relative: the first of the second table, which bind nothing
  ElfW(Addr) relro_from = 0, relro_to = 0;
};

// The tables of a loaded library. glibc has turned the addresses in the dynamic section into those
// of this process, except in the vDSO.
bool read_module(const dl_phdr_info& info, Module& m) {
  m.base = info.dlpi_addr;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info.dlpi_phdr[i];
    if (p.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(m.base + p.p_vaddr);
    if (p.p_type == PT_GNU_RELRO)
      m.relro_from = m.base + p.p_vaddr, m.relro_to = m.relro_from + p.p_memsz;
  }
  if (dynamic == nullptr) return false;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const ElfW(Addr) at = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB) m.symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (dynamic->d_tag == DT_STRTAB) m.texts = reinterpret_cast<const char*>(at);
    if (dynamic->d_tag == DT_JMPREL) m.tables[0] = reinterpret_cast<const ElfW(Rela)*>(at);
    if (dynamic->d_tag == DT_PLTRELSZ) m.counts[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
    if (dynamic->d_tag == DT_RELA) m.tables[1] = reinterpret_cast<const ElfW(Rela)*>(at);
    if (dynamic->d_tag == DT_RELACOUNT) m.relative = dynamic->d_un.d_val;
    if (dynamic->d_tag == DT_RELASZ) m.counts[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
  }
  return m.symbols != nullptr && m.texts != nullptr &&
         reinterpret_cast<uintptr_t>(m.symbols) > m.base;
}

void change_imports(const Module& m, const Redirection* redirections, size_t count) {
  for (int t = 0; t < 2; ++t) {
    for (size_t i = t == 0 ? 0 : m.relative; m.tables[t] != nullptr && i < m.counts[t]; ++i) {
      const ElfW(Rela)& r = m.tables[t][i];
      if (!binds(r.r_info)) continue;
      const char* name = m.texts + m.symbols[ELF64_R_SYM(r.r_info)].st_name;
      for (size_t k = 0; k < count; ++k) {
        if (std::strcmp(name, redirections[k].symbol) != 0) continue;
        auto* slot = reinterpret_cast<void**>(m.base + r.r_offset);
        void* const next = redirections[k].replace(*slot);
        if (next == *slot) break;
        const auto at = reinterpret_cast<ElfW(Addr)>(slot);
        const bool read_only = at >= m.relro_from && at < m.relro_to;
        if (read_only && !make_writable(slot, sizeof *slot)) break;
        *slot = next;
        if (read_only) make_read_only(slot, sizeof *slot);
        break;
      }
    }
  }
}

struct Search {
  const Redirection* redirections;
  size_t count;
  const void* self;
  SeenLibraries* seen;
  unsigned long long loaded;
};

}  // namespace

bool knows_imports() { return kKnown; }
bool make_writable(void* at, size_t bytes) { return protect(at, bytes, PROT_READ | PROT_WRITE); }
void make_read_only(void* at, size_t bytes) { protect(at, bytes, PROT_READ); }

void redirect_imports(const Redirection* redirections, size_t count, SeenLibraries& seen) {
  if (!kKnown) return;
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&redirect_imports), &info);
  Search search{redirections, count, info.dli_fbase, &seen, seen.loaded};
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* data) {
        auto* s = static_cast<Search*>(data);
        s->loaded = library->dlpi_adds;
        if (library->dlpi_adds == s->seen->loaded) return 1;
        if (library->dlpi_subs != s->seen->unloaded) {  // another may lie where one was
          s->seen->bases.clear();
          s->seen->unloaded = library->dlpi_subs;
        }
        if (!s->seen->bases.insert(library->dlpi_addr).second) return 0;
        Module m;
        if (reinterpret_cast<const void*>(library->dlpi_addr) != s->self &&
            read_module(*library, m))
          change_imports(m, s->redirections, s->count);
        return 0;
      },
      &search);
  seen.loaded = search.loaded;
}

}  // namespace saturate::observe::cupti
