// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/other_profiler.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

namespace saturate::observe::cupti {
namespace {

using Register = Result (*)(BufferRequested, BufferCompleted);
constexpr const char* kSymbol = "cuptiActivityRegisterCallbacks";
constexpr size_t kMostImports = 8;  // libraries that import it

void (*notify)() = nullptr;
std::array<Register, kMostImports> originals{};
size_t imports = 0;
Register exported = nullptr;  // libcupti's own

// One for each library, since each may be bound to another copy of libcupti.
template <size_t I>
Result registering(BufferRequested requested, BufferCompleted completed) {
  if (notify != nullptr) notify();
  return originals[I](requested, completed);
}
template <size_t... I>
constexpr std::array<Register, kMostImports> make_wrappers(std::index_sequence<I...>) {
  return {registering<I>...};
}
constexpr auto kWrappers = make_wrappers(std::make_index_sequence<kMostImports>());

Result registering_exported(BufferRequested requested, BufferCompleted completed) {
  if (notify != nullptr) notify();
  return exported(requested, completed);
}

#if defined(__x86_64__)
bool binds(uint64_t info) {
  return ELF64_R_TYPE(info) == R_X86_64_JUMP_SLOT || ELF64_R_TYPE(info) == R_X86_64_GLOB_DAT;
}
#elif defined(__aarch64__)
bool binds(uint64_t info) {
  return ELF64_R_TYPE(info) == R_AARCH64_JUMP_SLOT || ELF64_R_TYPE(info) == R_AARCH64_GLOB_DAT;
}
#else
bool binds(uint64_t) { return false; }
#endif

// Whether the page of `at` may be written now; `was` is its protection as far as ELF says.
bool make_writable(void* at, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = reinterpret_cast<uintptr_t>(at) & ~(page - 1);
  const uintptr_t to = reinterpret_cast<uintptr_t>(at) + bytes;
  return mprotect(reinterpret_cast<void*>(from), to - from, PROT_READ | PROT_WRITE) == 0;
}
void make_read_only(void* at, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = reinterpret_cast<uintptr_t>(at) & ~(page - 1);
  const uintptr_t to = reinterpret_cast<uintptr_t>(at) + bytes;
  mprotect(reinterpret_cast<void*>(from), to - from, PROT_READ);
}

struct Module {
  ElfW(Addr) base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* texts = nullptr;
  const ElfW(Rela) * tables[2] = {};
  size_t counts[2] = {};
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
    if (dynamic->d_tag == DT_RELASZ) m.counts[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
  }
  return m.symbols != nullptr && m.texts != nullptr &&
         reinterpret_cast<uintptr_t>(m.symbols) > m.base;
}

void change_imports(const Module& m) {
  for (int t = 0; t < 2; ++t) {
    for (size_t i = 0; m.tables[t] != nullptr && i < m.counts[t]; ++i) {
      const ElfW(Rela)& r = m.tables[t][i];
      if (!binds(r.r_info)) continue;
      const ElfW(Sym)& symbol = m.symbols[ELF64_R_SYM(r.r_info)];
      if (std::strcmp(m.texts + symbol.st_name, kSymbol) != 0) continue;
      auto* slot = reinterpret_cast<Register*>(m.base + r.r_offset);
      for (const Register w : kWrappers) {
        if (*slot == w) return;
      }
      if (*slot == &registering_exported || imports == kMostImports) return;
      const auto at = reinterpret_cast<ElfW(Addr)>(slot);
      const bool read_only = at >= m.relro_from && at < m.relro_to;
      if (read_only && !make_writable(slot, sizeof *slot)) return;
      originals[imports] = *slot;
      *slot = kWrappers[imports++];
      if (read_only) make_read_only(slot, sizeof *slot);
    }
  }
}

struct Search {
  const Api* api;
  const void* self;
  unsigned long long loaded = 0;
};
unsigned long long seen_loaded = 0;

}  // namespace

void watch_other_profilers(const Api& api, void (*before_register)()) {
  if (!binds(ELF64_R_INFO(0, 7)) && !binds(ELF64_R_INFO(0, 1026))) return;
  notify = before_register;
  // libcupti's own table, for what binds later or searches for the name itself.
  Dl_info info{};
  const ElfW(Sym)* symbol = nullptr;
  if (exported == nullptr &&
      dladdr1(reinterpret_cast<const void*>(api.register_callbacks), &info,
              reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT) != 0 &&
      symbol != nullptr) {
    auto* entry = const_cast<ElfW(Sym)*>(symbol);
    const auto base = reinterpret_cast<ElfW(Addr)>(info.dli_fbase);
    if (base + entry->st_value == reinterpret_cast<ElfW(Addr)>(api.register_callbacks) &&
        make_writable(entry, sizeof *entry)) {
      exported = api.register_callbacks;
      entry->st_value = reinterpret_cast<ElfW(Addr)>(&registering_exported) - base;
      make_read_only(entry, sizeof *entry);
    }
  }
  dladdr(reinterpret_cast<const void*>(&registering_exported), &info);
  Search search{&api, info.dli_fbase};
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* data) {
        auto* s = static_cast<Search*>(data);
        s->loaded = library->dlpi_adds;
        if (library->dlpi_adds == seen_loaded) return 1;
        Module m;
        if (reinterpret_cast<const void*>(library->dlpi_addr) != s->self &&
            read_module(*library, m))
          change_imports(m);
        return 0;
      },
      &search);
  seen_loaded = search.loaded;
}

}  // namespace saturate::observe::cupti
